package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
)

// configuration is what is kept about servers, in a file that its owner alone may read.
type configuration struct {
	Current  string              `json:"current,omitempty"`
	Contexts map[string]endpoint `json:"contexts"`
}

// endpoint is one server and who calls there.
type endpoint struct {
	URL    string `json:"url,omitempty"`
	Key    string `json:"key,omitempty"`
	Tenant string `json:"tenant,omitempty"`
}

// maxConfigBytes is far more than a configuration has.
const maxConfigBytes = 1 << 20

func configPath() (string, error) {
	if p := os.Getenv("SANDTRAIL_CONFIG"); p != "" {
		return p, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the configuration: %w", err)
	}
	return filepath.Join(dir, "sandtrail", "config.json"), nil
}

// readConfig gives an empty configuration where there is none.
func readConfig() (configuration, error) {
	c := configuration{Contexts: map[string]endpoint{}}
	path, err := configPath()
	if err != nil {
		return c, nil //nolint:nilerr // without a home there is no configuration
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, usagef("read the configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigBytes))
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return c, usagef("the configuration %s cannot be read: %w", path, err)
	}
	if c.Contexts == nil {
		c.Contexts = map[string]endpoint{}
	}
	return c, nil
}

// write replaces the file at once.
func (c configuration) write() error {
	path, err := configPath()
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".config-*")
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	_, err = f.Write(append(data, '\n')) // mode 0600 from the start
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}

// pick is the context of a name, or the current one; empty where there is none.
func (c configuration) pick(name string) (endpoint, error) {
	if name == "" {
		return c.Contexts[c.Current], nil
	}
	found, ok := c.Contexts[name]
	if !ok {
		return found, usagef("there is no context %q; there are: %s", name, strings.Join(slices.Sorted(maps.Keys(c.Contexts)), ", "))
	}
	return found, nil
}

// Config is `sandtrail config`.
type Config struct {
	View ConfigView `cmd:"" help:"Show the contexts, keys hidden."`
	Set  ConfigSet  `cmd:"" help:"Make or change a context."`
	Use  ConfigUse  `cmd:"" help:"Make a context the current one."`
	Rm   ConfigRm   `cmd:"" help:"Remove a context."`
}

// ConfigView is `sandtrail config view`.
type ConfigView struct{ Format }

// shownContext is a context as it is shown.
type shownContext struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	URL     string `json:"url"`
	Key     string `json:"key"`
	Tenant  string `json:"tenant"`
}

// Run shows what is kept. Of a key only its beginning is shown.
func (v *ConfigView) Run(e *Env) error {
	c, err := readConfig()
	if err != nil {
		return err
	}
	all := []shownContext{}
	t := render.Table{Header: []string{"CURRENT", "NAME", "URL", "KEY", "TENANT"}}
	for _, name := range slices.Sorted(maps.Keys(c.Contexts)) {
		x := c.Contexts[name]
		s := shownContext{Name: name, Current: name == c.Current, URL: first(x.URL, defaultURL), Tenant: x.Tenant}
		if x.Key != "" {
			s.Key = x.Key[:min(4, len(x.Key)/4)] + "…"
		}
		all = append(all, s)
		t.Rows = append(t.Rows, []string{map[bool]string{true: "*"}[s.Current], s.Name, s.URL, s.Key, s.Tenant})
	}
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return v.show(e.Stdout, data, t.Write)
}

// ConfigSet is `sandtrail config set`.
type ConfigSet struct {
	Name       string `arg:"" help:"Its name."`
	APIURL     string `name:"api-url" placeholder:"URL" help:"The server's URL."`
	APIKeyFile string `name:"api-key-file" type:"path" placeholder:"FILE" help:"File that holds the API key; it is copied."`
	Tenant     string `placeholder:"ID" help:"Tenant, for servers without API keys."`
}

// Run keeps what is given and leaves the rest. The first context becomes the current one.
func (s *ConfigSet) Run(*Env) error {
	c, err := readConfig()
	if err != nil {
		return err
	}
	x := c.Contexts[s.Name]
	x.URL, x.Tenant = first(s.APIURL, x.URL), first(s.Tenant, x.Tenant)
	if s.APIKeyFile != "" {
		if x.Key, err = (&Server{APIKeyFile: s.APIKeyFile}).key(); err != nil {
			return err
		}
	}
	c.Contexts[s.Name] = x
	c.Current = first(c.Current, s.Name)
	return c.write()
}

// ConfigUse is `sandtrail config use`.
type ConfigUse struct {
	Name string `arg:"" help:"Its name."`
}

// Run makes it current.
func (u *ConfigUse) Run(*Env) error {
	c, err := readConfig()
	if err != nil {
		return err
	}
	if _, err := c.pick(u.Name); err != nil {
		return err
	}
	c.Current = u.Name
	return c.write()
}

// ConfigRm is `sandtrail config rm`.
type ConfigRm struct {
	Name string `arg:"" help:"Its name."`
}

// Run removes it.
func (r *ConfigRm) Run(*Env) error {
	c, err := readConfig()
	if err != nil {
		return err
	}
	if _, err := c.pick(r.Name); err != nil {
		return err
	}
	delete(c.Contexts, r.Name)
	if c.Current == r.Name {
		c.Current = ""
	}
	return c.write()
}
