package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	usage "github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/sentry"
)

// Sandbox is one that is ready.
type Sandbox struct {
	ID string
	// Keeper is the pid of its keeper, Sentry that of the gVisor process that its programs run in.
	Keeper, Sentry int
	// container is its id for runsc; desk is the keeper's directory, in the keeper's mount namespace.
	container, desk string
	state           string
}

// Create makes a sandbox and waits until it is ready.
func (u *Up) Create(ctx context.Context) (*Sandbox, error) {
	res, err := u.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: Tenant, SessionId: "bench", Image: Image})
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	// The first command waits for the sandbox.
	if _, err := u.Exec(ctx, res.GetSandboxId(), nil, "true"); err != nil {
		return nil, fmt.Errorf("wait for sandbox: %w", err)
	}
	return u.Open(res.GetSandboxId())
}

// Open finds the processes of a sandbox that is ready.
func (u *Up) Open(id string) (*Sandbox, error) {
	s := &Sandbox{ID: id, container: "st" + strings.ReplaceAll(id, "-", ""), state: u.State}
	var err error
	if s.Keeper, err = pidFile(filepath.Join(u.State, "sandboxes", id, "keeper.pid")); err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", s.Keeper))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); strings.Contains(line, " - tmpfs sandtrail ") && len(f) > 4 {
			s.desk = f[4]
		}
	}
	if s.desk == "" {
		return nil, fmt.Errorf("keeper %d has no desk", s.Keeper)
	}
	s.Sentry, err = pidFile(s.outside("sentry.pid"))
	return s, err
}

// outside is a path of the desk as seen from here.
func (s *Sandbox) outside(name string) string {
	return fmt.Sprintf("/proc/%d/root%s", s.Keeper, filepath.Join(s.desk, name))
}

func pidFile(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// Destroy ends the sandbox and returns when it is gone.
func (u *Up) Destroy(ctx context.Context, id string) error {
	_, err := u.API.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: id})
	return err
}

// Toolbox calls the keeper directly.
func (s *Sandbox) Toolbox() *client.Client {
	return client.New(client.KeeperDialer(s.state, s.ID), "")
}

// Control opens the sentry's own control socket, as the keeper does. Close both.
func (s *Sandbox) Control() (*sentry.Client, io.Closer, error) {
	root, err := os.Open(s.outside("runsc"))
	if err != nil {
		return nil, nil, err
	}
	return sentry.New(s.container, sentry.Dialer(root, s.container)), root, nil
}

// RunscExec is the command line that runs a program in this sandbox as the guest's user. It works in the keeper's mount namespace only.
func (s *Sandbox) RunscExec(program ...string) ([]string, error) {
	runsc, err := Runsc()
	if err != nil {
		return nil, err
	}
	args := []string{runsc, "--root", filepath.Join(s.desk, "runsc"), "exec", "--user", "1000:1000", s.container}
	return append(args, program...), nil
}

// Inside runs fn on a thread that is in the keeper's mount namespace: programs that fn starts are in it too, without the cost
// of another program such as nsenter. fn must start them itself, not in another goroutine.
func (s *Sandbox) Inside(fn func() error) error { return inNamespace(s.Keeper, fn) }

// Runsc is the gVisor binary that `sandtrail up` uses.
func Runsc() (string, error) {
	cache, err := usage.DefaultCache()
	if err != nil {
		return "", err
	}
	found, _ := filepath.Glob(filepath.Join(cache, "bin", "runsc-*"))
	newest, at := "", time.Time{}
	for _, path := range found {
		if info, err := os.Stat(path); err == nil && info.Mode()&0o100 != 0 && info.ModTime().After(at) {
			newest, at = path, info.ModTime()
		}
	}
	if newest == "" {
		return "", fmt.Errorf("no runsc in %s", cache)
	}
	return newest, nil
}

// Rootfs is the unpacked image.
func (u *Up) Rootfs() (string, error) {
	found, _ := filepath.Glob(filepath.Join(u.State, "images", "rootfs", "*", "usr"))
	if len(found) == 0 {
		return "", errors.New("the image store has no unpacked image")
	}
	return filepath.Dir(found[0]), nil
}
