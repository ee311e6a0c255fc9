package evidence

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// part is one file of saved evidence: what it holds goes there and comes from there as JSON.
type part struct {
	name string
	in   any
}

func (e *Evidence) parts() []part {
	return []part{
		{"evidence.json", e},
		{"events.json", &e.Events},
		{"transcripts.json", &e.Transcripts},
		{"buckets.json", &e.Buckets},
		{"hosts.json", &e.Hosts},
		{"exec_rows.json", &e.Execs},
		{"sandbox_rows.json", &e.Sandboxes},
		{"hours.json", &e.Hours},
		{"witnesses.json", &e.Witnesses},
		{"appends.json", &e.Appends},
		{"samples.json", &e.Samples},
	}
}

// Save writes the evidence into a directory, which is made where it is missing. Load gives it back as it was.
func (e Evidence) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("save evidence: %w", err)
	}
	for _, p := range e.parts() {
		if err := write(filepath.Join(dir, p.name), p.in); err != nil {
			return fmt.Errorf("save evidence: %w", err)
		}
	}
	return nil
}

func write(path string, in any) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	return errors.Join(json.NewEncoder(w).Encode(in), w.Flush(), f.Close())
}

// Load reads what Save wrote. A part whose file is missing was not collected.
func Load(dir string) (Evidence, error) {
	var e Evidence
	for _, p := range e.parts() {
		f, err := os.Open(filepath.Join(dir, p.name))
		if errors.Is(err, fs.ErrNotExist) && p.name != "evidence.json" {
			continue
		}
		if err != nil {
			return e, fmt.Errorf("load evidence: %w", err)
		}
		d := json.NewDecoder(bufio.NewReader(f))
		// As ClickHouse wrote them: a float cannot hold every 64-bit number.
		d.UseNumber()
		err = errors.Join(d.Decode(p.in), f.Close())
		if err != nil {
			return e, fmt.Errorf("load evidence: %s: %w", p.name, err)
		}
	}
	return e, nil
}
