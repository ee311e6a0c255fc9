// Package runtimetest is the contract of runtime.Driver as tests. Every driver runs it against the real thing.
package runtimetest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
)

// Fixture is a driver under test, on a state of its own.
type Fixture struct {
	Driver runtime.Driver
	// Image holds a POSIX shell.
	Image string
	// Exec runs a shell command in a sandbox through Driver.Dial and returns its standard output and exit code.
	Exec func(ctx context.Context, id, command string) (stdout string, exit int, err error)
	// Leftovers names whatever of a sandbox is still on this host, the workspace apart.
	Leftovers func(id string) []string
}

// Run runs the suite; open is called once for each test in it.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for name, test := range map[string]func(*testing.T, Fixture){
		"ready means that an exec works":         ready,
		"create is repeatable":                   repeat,
		"creates of one id at once make one":     concurrent,
		"destroy leaves only the workspace":      destroy,
		"the workspace outlives its sandbox":     workspace,
		"an image that is not there":             noImage,
		"a create that is given up leaves none":  givenUp,
		"what does not exist":                    unknown,
		"sandboxes are apart":                    apart,
		"the environment and the identity":       identity,
		"list and workspaces show what there is": list,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func spec(f Fixture) runtime.Spec {
	id := ids.New()
	return runtime.Spec{
		ID: id, Tenant: "acme", Image: f.Image, Hostname: "sandbox-" + ids.Short(id), MountPath: "/workspace",
		Env: map[string]string{"GREETING": "hello"}, WorkspaceBytes: 64 << 20, CPUMillis: 2000, MemoryBytes: 256 << 20, PIDs: 64,
	}
}

func create(t *testing.T, f Fixture, s runtime.Spec) runtime.Created {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_, err := f.Driver.Destroy(ctx, s.ID)
		require.NoError(t, err)
		require.Empty(t, f.Leftovers(s.ID))
	})
	c, err := f.Driver.Create(t.Context(), s)
	require.NoError(t, err)
	return c
}

func sh(t *testing.T, f Fixture, id, command string) string {
	t.Helper()
	out, exit, err := f.Exec(t.Context(), id, command)
	require.NoError(t, err)
	require.Zero(t, exit, out)
	return strings.TrimSpace(out)
}

func ready(t *testing.T, f Fixture) {
	s := spec(f)
	c := create(t, f, s)
	require.NotEmpty(t, c.ImageDigest)
	require.NotEmpty(t, c.RuntimeID)
	require.NotEmpty(t, c.Phases)
	require.Equal(t, "hi", sh(t, f, s.ID, "echo hi"))
	_, exit, err := f.Exec(t.Context(), s.ID, "exit 7")
	require.NoError(t, err)
	require.Equal(t, 7, exit)
	st, err := f.Driver.Inspect(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, runtime.Status{ID: s.ID, Tenant: "acme", Alive: true, Exists: true}, st)
	u, err := f.Driver.Stats(t.Context(), s.ID)
	require.NoError(t, err)
	require.Positive(t, u.MemoryBytes)
	require.Positive(t, u.Uptime)
}

func repeat(t *testing.T, f Fixture) {
	s := spec(f)
	first := create(t, f, s)
	sh(t, f, s.ID, "echo kept > /tmp/mark")
	again := create(t, f, s)
	require.Equal(t, first.RuntimeID, again.RuntimeID)
	require.Equal(t, first.ImageDigest, again.ImageDigest)
	require.Equal(t, "kept", sh(t, f, s.ID, "cat /tmp/mark"), "it is the same sandbox")
}

func concurrent(t *testing.T, f Fixture) {
	s := spec(f)
	create(t, f, s)
	_, err := f.Driver.Destroy(t.Context(), s.ID)
	require.NoError(t, err)
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = f.Driver.Create(t.Context(), s) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	all, err := f.Driver.List(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
}

func destroy(t *testing.T, f Fixture) {
	s := spec(f)
	create(t, f, s)
	sh(t, f, s.ID, "sleep 600 & trap '' TERM; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
	u, err := f.Driver.Destroy(t.Context(), s.ID)
	require.NoError(t, err)
	require.Positive(t, u.CPUMillis)
	require.Positive(t, u.Uptime)
	require.Empty(t, f.Leftovers(s.ID))
	st, err := f.Driver.Inspect(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, runtime.Status{ID: s.ID}, st)
	u, err = f.Driver.Destroy(t.Context(), s.ID)
	require.NoError(t, err)
	require.Zero(t, u)
}

func workspace(t *testing.T, f Fixture) {
	s := spec(f)
	create(t, f, s)
	require.Empty(t, sh(t, f, s.ID, "ls -A /workspace"), "a new workspace is empty")
	sh(t, f, s.ID, "echo kept > /workspace/mark; echo gone > /tmp/mark")
	err := f.Driver.DeleteWorkspace(t.Context(), s.ID)
	require.Equal(t, fault.Conflict, fault.CodeOf(err))
	_, err = f.Driver.Destroy(t.Context(), s.ID)
	require.NoError(t, err)

	create(t, f, s)
	require.Equal(t, "kept", sh(t, f, s.ID, "cat /workspace/mark"))
	_, exit, err := f.Exec(t.Context(), s.ID, "cat /tmp/mark")
	require.NoError(t, err)
	require.NotZero(t, exit)
	_, err = f.Driver.Destroy(t.Context(), s.ID)
	require.NoError(t, err)
	require.NoError(t, f.Driver.DeleteWorkspace(t.Context(), s.ID))
	require.NoError(t, f.Driver.DeleteWorkspace(t.Context(), s.ID))
	all, err := f.Driver.Workspaces(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
}

func noImage(t *testing.T, f Fixture) {
	s := spec(f)
	s.Image = "not a reference"
	_, err := f.Driver.Create(t.Context(), s)
	require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%v", err)
	require.Empty(t, f.Leftovers(s.ID))
}

func givenUp(t *testing.T, f Fixture) {
	s := spec(f)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	_, err := f.Driver.Create(ctx, s)
	require.Error(t, err)
	require.Empty(t, f.Leftovers(s.ID))
	create(t, f, s)
	require.Equal(t, "hi", sh(t, f, s.ID, "echo hi"))
}

func unknown(t *testing.T, f Fixture) {
	id := ids.New()
	st, err := f.Driver.Inspect(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, runtime.Status{ID: id}, st)
	u, err := f.Driver.Destroy(t.Context(), id)
	require.NoError(t, err)
	require.Zero(t, u)
	require.NoError(t, f.Driver.DeleteWorkspace(t.Context(), id))
	_, err = f.Driver.Dial(t.Context(), id)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	_, err = f.Driver.Stats(t.Context(), id)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	for _, bad := range []string{"", ".", "..", "../x", "x/y"} {
		_, err = f.Driver.Destroy(t.Context(), bad)
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err), bad)
	}
}

func apart(t *testing.T, f Fixture) {
	one, two := spec(f), spec(f)
	create(t, f, one)
	create(t, f, two)
	sh(t, f, one.ID, "echo secret > /workspace/mark; echo secret > /tmp/mark")
	require.Empty(t, sh(t, f, two.ID, "ls -A /workspace; ls /tmp"))
	_, err := f.Driver.Destroy(t.Context(), one.ID)
	require.NoError(t, err)
	require.Equal(t, "alive", sh(t, f, two.ID, "echo alive"))
}

func identity(t *testing.T, f Fixture) {
	s := spec(f)
	create(t, f, s)
	require.Equal(t, "hello", sh(t, f, s.ID, "echo $GREETING"))
	require.Equal(t, s.Hostname, sh(t, f, s.ID, "cat /proc/sys/kernel/hostname"))
	require.NotEqual(t, "0", sh(t, f, s.ID, "id -u"))
	require.Equal(t, "mine", sh(t, f, s.ID, "echo mine > /workspace/f && cat /workspace/f"))
}

func list(t *testing.T, f Fixture) {
	one, two := spec(f), spec(f)
	create(t, f, one)
	create(t, f, two)
	all, err := f.Driver.List(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, []runtime.Status{
		{ID: one.ID, Tenant: "acme", Alive: true, Exists: true}, {ID: two.ID, Tenant: "acme", Alive: true, Exists: true},
	}, all)
	spaces, err := f.Driver.Workspaces(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, []string{one.ID, two.ID}, spaces)
}
