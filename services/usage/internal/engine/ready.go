package engine

import (
	"encoding/json"
	"os"
)

// ports are those that the engine serves on.
type ports struct {
	Native int `json:"tcp"`
	HTTP   int `json:"http"`
}

// readReady reads the file that the engine writes once it serves. It is not written at once: until it is whole, ok is false.
func readReady(path string) (p ports, ok bool) {
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &p) != nil {
		return ports{}, false
	}
	return p, p.Native > 0 && p.HTTP > 0
}
