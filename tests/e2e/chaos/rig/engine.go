package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// engine is ClickHouse as a server of its own: the built-in engine of the usage service, which that service starts by the same description
// in its environment when it has no other.
type engine struct {
	Library, Dir, Ready string
	Native, HTTP        int
	AdminPassword       string
}

// Administrator of ClickHouse.
const Administrator = "sandtrail"

const (
	engineEnv      = "SANDTRAIL_ENGINE_CHILD"
	enginePassword = "chaos"
)

func newEngine(dir, library, native, http string) (engine, error) {
	e := engine{Library: library, Dir: dir, Ready: filepath.Join(dir, "ready.json"), AdminPassword: enginePassword}
	var err error
	if e.Native, err = portOf(native); err == nil {
		e.HTTP, err = portOf(http)
	}
	if err != nil {
		return e, err
	}
	return e, os.MkdirAll(dir, 0o700)
}

func portOf(addr string) (int, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(port)
}

// findLibrary is the library that `sandtrail up --prepare-only` has fetched.
func findLibrary() (string, error) {
	cache := os.Getenv("SANDTRAIL_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find ClickHouse: %w", err)
		}
		cache = filepath.Join(dir, "sandtrail")
	}
	found, err := filepath.Glob(filepath.Join(cache, "chdb", "*", "node_modules", "@chdb", "*", "libchdb.so"))
	if err == nil && len(found) == 0 {
		err = errors.New("it is not in " + cache)
	}
	if err != nil {
		return "", fmt.Errorf("find ClickHouse: %w", err)
	}
	return found[len(found)-1], nil
}

func (e engine) command(program string) (func() *exec.Cmd, error) {
	description, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return func() *exec.Cmd {
		// What an earlier one has left there would be taken for its own.
		_ = os.Remove(e.Ready)
		cmd := exec.Command(program)
		cmd.Args = []string{"sandtrail-clickhouse"}
		cmd.Env = []string{engineEnv + "=" + string(description), "TZ=UTC", "PATH=" + os.Getenv("PATH"), "HOME=" + e.Dir}
		cmd.Dir = e.Dir
		return cmd
	}, nil
}

// url for the usage service, at the native protocol's address.
func (e engine) url(native string) string {
	return "clickhouse://" + Administrator + ":" + enginePassword + "@" + native + "/default"
}

// answers asks a HTTP server for a path.
func answers(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", url, res.Status)
	}
	return nil
}
