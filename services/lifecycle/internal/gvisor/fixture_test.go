package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/ids"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/debian"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/image"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/workspace"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
	"github.com/sandtrail/sandtrail/toolbox/client"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// programs are got once for all tests of this package; from the second run on they come from the cache.
var programs = sync.OnceValues(func() ([2]string, error) {
	if dir := os.Getenv(asUser); dir != "" {
		return [2]string{filepath.Join(dir, "runsc"), filepath.Join(dir, "toolbox")}, nil
	}
	ctx := context.Background()
	runsc, err := prepare.Runsc(ctx, prepare.Options{})
	if err != nil {
		return [2]string{}, err
	}
	toolbox, err := prepare.Toolbox(ctx, prepare.Options{})
	return [2]string{runsc, toolbox}, err
})

// images is a store in the cache, so that the built-in image is unpacked once on a machine.
var images = sync.OnceValues(func() (*image.Store, error) {
	// Orphans come to this process, as they do where lifecycle is the init of a container: nobody else takes them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	if dir := os.Getenv(asUser); dir != "" {
		return image.Open(image.Options{Dir: filepath.Join(dir, "images"), Sources: map[string]image.Source{
			debian.Reference: image.FromPath(filepath.Join(dir, "layout")),
		}})
	}
	cache, err := prepare.CacheDir()
	if err != nil {
		return nil, err
	}
	return image.Open(image.Options{Dir: filepath.Join(cache, "test-images"), HostIDBase: idBase, Sources: map[string]image.Source{
		debian.Reference: func(ctx context.Context, p prepare.Progress) (v1.Image, error) {
			return debian.Build(ctx, debian.Options{Progress: p})
		},
	}})
})

// groupEnv gives the name of the group to the processes that tests start of this program to kill them.
const groupEnv = "SANDTRAIL_TEST_GROUP"

// group holds the sandboxes' groups of this test process, which takes it away at its end.
var group = cmp.Or(os.Getenv(groupEnv), fmt.Sprintf("sandtrail-test-%d", os.Getpid()))

func TestMain(m *testing.M) {
	if os.Getenv(groupEnv) != "" {
		os.Exit(m.Run())
	}
	// A user without root has what cgroups it is given.
	if err := cgroup.Settle(); err != nil && !rootless {
		_, _ = fmt.Fprintln(os.Stderr, "no cgroups:", err)
		os.Exit(1)
	}
	err := os.Setenv(groupEnv, group)
	code := m.Run()
	if g, at := cgroup.Open(group); at == nil {
		err = errors.Join(err, g.Remove())
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "cgroups are left:", err)
		code = 1
	}
	os.Exit(code)
}

// rootless: the tests run as a common user, as TestRootless has them do.
var rootless = os.Geteuid() != 0

var idBase = func() uint32 {
	if rootless {
		return 0
	}
	return DefaultHostIDBase
}()

type host struct {
	*Driver
	state string
}

func newHost(t testing.TB, state string, change ...func(*Options)) *host {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: real sandboxes")
	}
	paths, err := programs()
	require.NoError(t, err)
	store, err := images()
	require.NoError(t, err)
	_, err = store.Ensure(t.Context(), debian.Reference, nil)
	require.NoError(t, err)
	spaces, err := workspace.Open(workspace.Options{
		Dir: filepath.Join(state, "workspaces"), Pool: 4, UID: idBase + DefaultUID, GID: idBase + DefaultUID, Directories: rootless,
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		spaces.Close()
		// What a program did to its directory is too much for the removal of the test's own.
		all, err := spaces.List()
		require.NoError(t, err)
		for _, id := range all {
			require.NoError(t, spaces.Delete(id))
		}
	})
	o := Options{
		StateDir: state, Runsc: paths[0], Toolbox: paths[1], Images: store, Workspaces: spaces,
		HostIDBase: idBase, Cgroup: group, ShutdownTimeout: 5 * time.Second, Log: slog.New(slog.NewTextHandler(logTo{t}, nil)),
	}
	for _, c := range change {
		c(&o)
	}
	d, err := New(o)
	require.NoError(t, err)
	return &host{d, state}
}

type logTo struct{ t testing.TB }

func (l logTo) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}

// exec runs a shell command and collects its output to the end.
func (h *host) exec(ctx context.Context, id, command string) (string, int, error) {
	out, end, err := h.run(ctx, id, command)
	return out, int(end.GetExitCode()), err
}

func (h *host) run(ctx context.Context, id, command string) (string, *toolboxv1.End, error) {
	c := client.New(func(ctx context.Context) (net.Conn, error) { return h.Dial(ctx, id) }, "")
	execID := ids.New()
	_, err := c.Start(ctx, &toolboxv1.Start{ExecId: execID, Argv: []string{"/bin/sh", "-c", command}})
	if err != nil {
		return "", nil, err
	}
	return h.follow(ctx, id, execID)
}

// follow collects the output of an exec to its end.
func (h *host) follow(ctx context.Context, id, execID string) (string, *toolboxv1.End, error) {
	stream, err := h.client(id).Attach(ctx, &toolboxv1.Attach{ExecId: execID})
	if err != nil {
		return "", nil, err
	}
	defer stream.Close()
	var out strings.Builder
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out.String(), nil, errors.New("the stream ended without an end of the program")
		}
		if err != nil {
			return out.String(), nil, err
		}
		if c := e.GetData(); c.GetStream() == 1 {
			out.Write(c.GetData())
		}
		if end := e.GetEnd(); end != nil {
			return out.String(), end, nil
		}
	}
}

// leftovers looks at the host and not at what the driver remembers.
func (h *host) leftovers(id string) []string {
	var left []string
	if _, err := os.Lstat(h.dir(id)); err == nil {
		left = append(left, "directory")
	}
	for _, pid := range keepers(id) {
		left = append(left, fmt.Sprintf("keeper %d", pid))
	}
	if g, err := cgroup.Open(h.cgroupName(id)); err == nil {
		for _, p := range g.Procs() {
			if _, err := os.Lstat(p); err == nil {
				left = append(left, p)
			}
		}
	}
	if dev, ok := loopOf(h.o.Workspaces.Path(id)); ok {
		left = append(left, dev)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), id) {
		left = append(left, "mount")
	}
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		left = append(left, err.Error())
	}
	for _, p := range all {
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p))); err == nil {
			if name, zombie := ownZombie(pid); zombie && (name == keeperName(h.o.Toolbox) || inGroup(pid, id)) {
				left = append(left, "zombie of "+name)
			}
		}
		if line, err := os.ReadFile(p); err == nil && (strings.Contains(string(line), runtimeID(id)) || strings.Contains(string(line), id)) {
			left = append(left, p+": "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return left
}

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}
