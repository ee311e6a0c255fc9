package cluster

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

//go:embed etc
var templates embed.FS

// settings are what the files of etc name.
type settings struct {
	Dir, PKI             string
	Node, Address, Pods  string
	Domain               string
	Network, Runc, Runsc string
	Pause                string
}

// writeConfig writes the files of etc below dir, filled in.
func (s settings) writeConfig() error {
	return fs.WalkDir(templates, "etc", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(s.Dir, path)
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		text, err := templates.ReadFile(path)
		if err != nil {
			return err
		}
		t, err := template.New(path).Option("missingkey=error").Parse(string(text))
		if err != nil {
			return err
		}
		var out strings.Builder
		if err := t.Execute(&out, s); err != nil {
			return err
		}
		return os.WriteFile(to, []byte(out.String()), 0o644)
	})
}
