package cgroup

import (
	"encoding/json"
	"fmt"
	"os"
)

type record struct {
	V1      map[string]string `json:"v1"`
	V2      string            `json:"v2"`
	Unified bool              `json:"unified"`
}

// Save writes where the group lies, so that a process in another cgroup finds it again.
func (g *Group) Save(path string) error {
	b, err := json.Marshal(record{g.v1, g.v2, g.unified})
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// Load reads what Save wrote.
func Load(path string) (*Group, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("read cgroup record: %w", err)
	}
	if r.V1 == nil {
		r.V1 = map[string]string{}
	}
	return &Group{v1: r.V1, v2: r.V2, unified: r.Unified}, nil
}
