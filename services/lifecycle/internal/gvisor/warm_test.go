package gvisor

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/runtime/runtimetest"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/debian"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/pool"
)

// warmed keeps n sandboxes like s ready.
func warmed(n int, s runtime.Spec) func(*Options) {
	s.ID, s.Tenant, s.Env, s.Hostname = "", "", nil, ""
	return func(o *Options) { o.Warm = pool.Policy{Max: n, Min: n, Keep: []runtime.Spec{s}} }
}

// pass has the pool do what it has to now; its end removes what is left of it.
func pass(t testing.TB, h *host) {
	t.Helper()
	t.Cleanup(func() { drain(t, h) })
	require.NoError(t, h.pool.Pass(bounded(t), true))
}

// drain is what a worker without a pool does.
func drain(t testing.TB, h *host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	off := pool.New(pool.Policy{}, h, h.o.Log, time.Now)
	require.NoError(t, off.Pass(ctx, true))
	require.Empty(t, warmOnes(t, h))
}

func warmOnes(t testing.TB, h *host) []string {
	t.Helper()
	items, err := h.Warm(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	var all []string
	for _, i := range items {
		all = append(all, i.ID)
	}
	return all
}

// warmHost has a warm sandbox for each create.
type warmHost struct {
	*host
	mu sync.Mutex
	// was are the warm ones behind sandboxes.
	was map[string]string
}

func (h *warmHost) Create(ctx context.Context, s runtime.Spec) (runtime.Created, error) {
	class, err := h.Resolve(ctx, s)
	if err != nil {
		return runtime.Created{}, err
	}
	if _, err := h.Make(ctx, class); err != nil {
		return runtime.Created{}, err
	}
	if err := h.pool.Pass(ctx, false); err != nil {
		return runtime.Created{}, err
	}
	created, err := h.host.Create(ctx, s)
	h.mu.Lock()
	defer h.mu.Unlock()
	if rec, e := readRecord(h.dir(s.ID)); e == nil {
		h.was[s.ID] = rec.Warm
	}
	return created, err
}

func (h *warmHost) leftovers(id string) []string {
	left := h.host.leftovers(id)
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.was[id]; w != "" {
		left = append(left, h.host.leftovers(w)...)
	}
	return left
}

// TestContractFromThePool: a sandbox that was warm is one like any other.
func TestContractFromThePool(t *testing.T) {
	runtimetest.Run(t, func(t *testing.T) runtimetest.Fixture {
		h := &warmHost{newHost(t, t.TempDir(), func(o *Options) { o.Warm.Max = 16 }), sync.Mutex{}, map[string]string{}}
		t.Cleanup(func() { drain(t, h.host) })
		return runtimetest.Fixture{Driver: h, Image: debian.Reference, Exec: h.exec, Leftovers: h.leftovers}
	})
}

func TestAClaimedSandboxIsFreshAndItsOwn(t *testing.T) {
	first, second := spec(), spec()
	second.Tenant = "other"
	h := newHost(t, t.TempDir(), warmed(2, first))
	pass(t, h)
	ready := warmOnes(t, h)
	require.Len(t, ready, 2)
	list, err := h.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list, "what is nobody's is no sandbox")
	spaces, err := h.Workspaces(t.Context())
	require.NoError(t, err)
	require.Empty(t, spaces)

	names := map[string]runtime.Created{}
	for _, s := range []runtime.Spec{first, second} {
		c := create(t, h, s)
		require.True(t, c.Warm)
		names[s.ID] = c
		out, exit, err := h.exec(bounded(t), s.ID, `uname -n; echo $CANARY; find /workspace /tmp /dev/shm -mindepth 1; id -u; env | grep -c CANARY; echo mine > /workspace/mark; echo mine > /tmp/mark; echo mine > /var/tmp/mark`)
		require.NoError(t, err)
		require.Zero(t, exit)
		require.Equal(t, "sandbox-"+ids.Short(s.ID)+"\ncanary-"+s.ID+"\n1000\n1\n", out)
		st, err := h.Inspect(t.Context(), s.ID)
		require.NoError(t, err)
		require.True(t, st.Alive)
		require.Equal(t, s.Tenant, st.Tenant)
		again, err := h.Create(bounded(t), s)
		require.NoError(t, err)
		require.Equal(t, c.RuntimeID, again.RuntimeID)
		require.True(t, again.Warm)
		_, err = h.client(s.ID).Configure(t.Context(), &toolboxv1.Configure{SandboxId: ids.New()})
		require.Error(t, err, "it is somebody's for ever")
	}
	require.NotEqual(t, names[first.ID].RuntimeID, names[second.ID].RuntimeID)
	require.Empty(t, warmOnes(t, h))
	noSecret(t, h.state, "canary-")

	third := spec()
	cold := create(t, h, third)
	require.False(t, cold.Warm, "an empty pool is a cold start")
	require.Equal(t, runtimeID(third.ID), cold.RuntimeID)
	for _, s := range []runtime.Spec{first, second} {
		w := h.at(s.ID).mark
		u, err := h.Destroy(bounded(t), s.ID)
		require.NoError(t, err)
		require.Positive(t, u.Uptime)
		require.Empty(t, h.leftovers(s.ID))
		require.Empty(t, h.leftovers(w))
		require.NoError(t, h.DeleteWorkspace(t.Context(), s.ID))
	}
}

// noSecret: what is written below a directory, sockets and what programs wrote apart.
func noSecret(t *testing.T, dir, secret string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || strings.HasSuffix(path, ".img") || strings.Contains(path, "/execs/") || strings.Contains(path, "/overlay/") {
			return nil
		}
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(data), secret, path)
		return nil
	}))
}

// TestKilledClaim: a process that is killed between any two steps of a claim leaves a sandbox that the next create finishes, or that a
// destroy removes whole.
func TestKilledClaim(t *testing.T) {
	steps := map[string]func(h *host, s runtime.Spec, rec record) error{
		"taken":     func(*host, runtime.Spec, record) error { return nil },
		"workspace": func(h *host, s runtime.Spec, rec record) error { return h.o.Workspaces.Adopt(rec.Warm, s.ID) },
		"told": func(h *host, s runtime.Spec, rec record) error {
			bound := rec
			_, err := h.bind(t.Context(), s, rec)
			if err == nil {
				err = writeRecord(h.dir(s.ID), bound)
			}
			return err
		},
	}
	for _, name := range slices.Sorted(maps.Keys(steps)) {
		t.Run(name, func(t *testing.T) {
			s, gone := spec(), spec()
			h := newHost(t, t.TempDir(), warmed(2, s))
			pass(t, h)
			for i, w := range warmOnes(t, h) {
				of := []runtime.Spec{s, gone}[i]
				rec, err := readRecord(h.warmAt(w).dir)
				require.NoError(t, err)
				require.NoError(t, os.Rename(h.warmAt(w).dir, h.dir(of.ID)))
				require.NoError(t, steps[name](h, of, rec))
			}
			next, err := New(h.o)
			require.NoError(t, err)
			h.Driver = next
			list, err := h.List(t.Context())
			require.NoError(t, err)
			require.Len(t, list, 2, "the reconciler sees them under their sandboxes' ids")

			w := h.at(gone.ID).mark
			_, err = h.Destroy(bounded(t), gone.ID)
			require.NoError(t, err)
			require.Empty(t, append(h.leftovers(gone.ID), h.leftovers(w)...))
			require.NoFileExists(t, h.o.Workspaces.WarmPath(w))

			c := create(t, h, s)
			require.True(t, c.Warm)
			out, _, err := h.exec(bounded(t), s.ID, "echo $CANARY; cat /proc/mounts | grep -c /workspace; echo kept > /workspace/mark")
			require.NoError(t, err)
			require.Equal(t, "canary-"+s.ID+"\n1\n", out)
			require.True(t, h.o.Workspaces.Exists(s.ID))
		})
	}
}

// TestAWorkspaceThatWasWrittenIsNeverDropped: where a host lost power, the rename of a workspace may be undone and the claim's end not.
func TestAWorkspaceThatWasWrittenIsNeverDropped(t *testing.T) {
	s := spec()
	h := newHost(t, t.TempDir(), warmed(1, s))
	pass(t, h)
	require.True(t, create(t, h, s).Warm)
	_, _, err := h.exec(bounded(t), s.ID, "echo kept > /workspace/mark; sync")
	require.NoError(t, err)
	p := h.at(s.ID)
	require.NoError(t, endKeepers(bounded(t), p.mark, goneTimeout))
	// Both are STATE/workspaces/NAME, the one of a directory the entry above what is shown.
	from, to := h.o.Workspaces.Path(s.ID), h.o.Workspaces.WarmPath(p.mark)
	if rootless {
		from, to = filepath.Dir(from), filepath.Dir(to)
	}
	require.NoError(t, os.Rename(from, to))
	_, err = h.Destroy(bounded(t), s.ID)
	require.NoError(t, err)
	require.True(t, h.o.Workspaces.Exists(s.ID))
	create(t, h, s)
	out, _, err := h.exec(bounded(t), s.ID, "cat /workspace/mark")
	require.NoError(t, err)
	require.Equal(t, "kept\n", out)
}

// TestAWarmSandboxThatDiesIsNotTaken: nor is anything left of it, and the create is a cold one.
func TestAWarmSandboxThatDiesIsNotTaken(t *testing.T) {
	s := spec()
	h := newHost(t, t.TempDir(), warmed(1, s))
	pass(t, h)
	w := warmOnes(t, h)[0]
	require.NoError(t, endKeepers(bounded(t), w, goneTimeout))
	require.False(t, create(t, h, s).Warm)
	require.NoError(t, h.pool.Pass(bounded(t), true))
	require.NotContains(t, warmOnes(t, h), w)
	require.Empty(t, h.leftovers(w))
	require.Len(t, warmOnes(t, h), 1, "another one is made")
}

// TestAnotherWorkerProcessFindsThePool, and removes it where it would start sandboxes in another way.
func TestAnotherWorkerProcessFindsThePool(t *testing.T) {
	s := spec()
	h := newHost(t, t.TempDir(), warmed(2, s))
	pass(t, h)
	before := warmOnes(t, h)
	again, err := New(h.o)
	require.NoError(t, err)
	require.NoError(t, again.pool.Pass(bounded(t), true))
	require.Equal(t, before, warmOnes(t, h))

	changed := h.o
	changed.MaxExecs++
	other, err := New(changed)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, other.pool.Pass(bounded(t), true))
	}
	after := warmOnes(t, h)
	require.Len(t, after, 2)
	for _, w := range before {
		require.NotContains(t, after, w)
		require.Empty(t, h.leftovers(w))
	}
}

// TestHelperPool is a lifecycle process for TestKilledRefill.
func TestHelperPool(t *testing.T) {
	state := os.Getenv("SANDTRAIL_TEST_POOL_IN")
	if state == "" {
		return
	}
	h := newHost(t, state, warmed(1, spec()))
	require.NoError(t, h.pool.Pass(t.Context(), true))
	<-t.Context().Done()
}

// TestKilledRefill kills the process that makes a warm sandbox at points of its start: the next one keeps it or leaves nothing of it.
func TestKilledRefill(t *testing.T) {
	for name, file := range map[string]string{"record": recordFile, "keeper": logFile, "cgroup": keeperGroup, "ready": keeperPID} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, t.TempDir())
			t.Cleanup(func() { drain(t, h) })
			cmd := exec.Command(os.Args[0], "-test.run=^TestHelperPool$")
			cmd.Env = append(os.Environ(), "SANDTRAIL_TEST_POOL_IN="+h.state)
			require.NoError(t, cmd.Start())
			var w string
			require.Eventually(t, func() bool {
				found, err := filepath.Glob(filepath.Join(h.state, warmDir, "*", file))
				if err == nil && len(found) > 0 {
					w = filepath.Base(filepath.Dir(found[0]))
				}
				return w != ""
			}, 60*time.Second, time.Millisecond)
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()
			drain(t, h)
			require.Empty(t, h.leftovers(w))
			require.NoFileExists(t, h.o.Workspaces.WarmPath(w))
		})
	}
}

// TestClaimsRacedByManyCreates: each warm sandbox is one sandbox's, and every create has one.
func TestClaimsRacedByManyCreates(t *testing.T) {
	s := spec()
	h := newHost(t, t.TempDir(), warmed(2, s))
	pass(t, h)
	const many = 4
	var mu sync.Mutex
	var wg sync.WaitGroup
	names, warm := map[string]bool{}, 0
	for range many {
		one := spec()
		wg.Go(func() {
			c, err := h.Create(bounded(t), one)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				names[c.RuntimeID] = true
				if c.Warm {
					warm++
				}
			}
		})
		t.Cleanup(func() {
			_, err := h.Destroy(context.Background(), one.ID)
			require.NoError(t, err)
		})
	}
	wg.Wait()
	require.Len(t, names, many)
	require.Equal(t, 2, warm)
}

func TestAWorkspaceThatIsThereIsKept(t *testing.T) {
	s := spec()
	h := newHost(t, t.TempDir(), warmed(1, s))
	pass(t, h)
	_, err := h.o.Workspaces.Create(t.Context(), s.ID, s.WorkspaceBytes)
	require.NoError(t, err)
	require.False(t, create(t, h, s).Warm)
	_, err = h.Make(t.Context(), pool.Class{Spec: runtime.Spec{Image: debian.Reference}})
	require.Error(t, err, "a class that means something else now")
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(h.Remove(t.Context(), "../x")))
}

// BenchmarkClaim is a whole create from the pool, beside BenchmarkCreateDestroy.
func BenchmarkClaim(b *testing.B) {
	s := spec()
	s.WorkspaceBytes = 0
	h := newHost(b, b.TempDir(), warmed(1, s))
	pass(b, h)
	var took time.Duration
	for b.Loop() {
		one := s
		one.ID = ids.New()
		begin := time.Now()
		c, err := h.Create(b.Context(), one)
		took += time.Since(begin)
		require.NoError(b, err)
		require.True(b, c.Warm)
		_, err = h.Destroy(b.Context(), one.ID)
		require.NoError(b, err)
		require.NoError(b, h.pool.Pass(b.Context(), true))
	}
	b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "claim-ms/op")
}
