package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// canaries are secrets that callers give us, each in its own place. They are long and random, so that none is found by chance.
var canaries = map[string]string{
	"a sandbox's environment": "CANARY-box-6f1c0e5b9a7d4c2e", "an exec's environment": "CANARY-exec-0b83d1f46e9a5c27",
	"an API key": "CANARY-key-d94e7a10c6b25f83", "a key that is not valid": "CANARY-bad-51e8c3f7a09d6b42",
	"a file": "CANARY-file-7c40f9b2e8d1a563", "standard input": "CANARY-stdin-a2b6e90d7f5c1384",
	"a refused request": "CANARY-refused-3d7f1a8e6c0b9254", "an idempotency key": "CANARY-idem-84c2b6e0f1d7a935",
}

// leaks are the names of the canaries in a text, written plainly, in hexadecimal digits or in base64.
func leaks(text []byte) (found []string) {
	for name, secret := range canaries {
		for _, form := range []string{secret, hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(secret))[:20]} {
			if bytes.Contains(text, []byte(form)) {
				found = append(found, name)
				break
			}
		}
	}
	slices.Sort(found)
	return found
}

// host looks at what everybody on this host can see of processes, and at the environments of ours, while a command runs.
func (l *leakTest) host(t *testing.T) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	ours := 0
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		l.clean(t, "the command line "+path, line)
		if !bytes.Contains(line, []byte(l.State)) && !bytes.Contains(line, []byte(l.NATS)) {
			continue
		}
		environment, err := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
		if err == nil {
			ours++
			l.clean(t, "the environment of "+string(line), environment)
		}
	}
	require.Greater(t, ours, len(stack.Services), "services and what holds the sandbox")
}

// leakTest is a stack whose every trace is searched.
type leakTest struct {
	*stack.Stack
	spans *spans
	ops   map[string]string
}

func (l *leakTest) clean(t *testing.T, where string, text []byte) {
	t.Helper()
	require.Empty(t, leaks(text), "in %s", where)
}

func leakStack(t *testing.T) *leakTest {
	t.Helper()
	l := &leakTest{spans: receive(t), ops: map[string]string{}}
	extra := stack.Extra{}
	for _, name := range stack.Services {
		extra[name] = []string{"--otlp-endpoint", l.spans.addr, "--log-level", "debug"}
		if name != "gateway" {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			l.ops[name] = listener.Addr().String()
			require.NoError(t, listener.Close())
			extra[name] = append(extra[name], "--ops", l.ops[name])
		}
	}
	extra["gateway"] = append(extra["gateway"], "--keys-file", keysFile(t, tenant{name: "acme", key: canaries["an API key"]}))
	l.Stack = stack.Processes(t, extra)
	l.Key = canaries["an API key"]
	l.ops["gateway"] = l.HTTP
	return l
}

// use gives the stack every secret, in calls that succeed and in calls that fail at each step.
func (l *leakTest) use(t *testing.T) {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", canaries["an idempotency key"])
	made, err := l.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{
		Image: stack.Image, SessionId: "session", EnvVars: map[string]string{"TOKEN": canaries["a sandbox's environment"]},
	})
	require.NoError(t, err)
	sandbox := made.GetSandboxId()
	run := func(command string, args ...string) *computev1.ExecCommandRequest {
		return &computev1.ExecCommandRequest{
			SandboxId: sandbox, Command: command, Args: args, Env: map[string]string{"PASSWORD": canaries["an exec's environment"]},
			Stdin: []byte(canaries["standard input"]),
		}
	}
	r := l.Run(t, run("sh", "-c", `echo ${#TOKEN} ${#PASSWORD} $(cat | wc -c)`))
	require.Equal(t, fmt.Sprintf("%d %d %d\n", len(canaries["a sandbox's environment"]), len(canaries["an exec's environment"]), len(canaries["standard input"])),
		string(r.Stdout), "%s", r.Stderr)
	require.EqualValues(t, 127, l.Run(t, run("no-such-command")).Completed.GetExitCode())

	_, err = l.API.WriteFile(ctx, &computev1.WriteFileRequest{SandboxId: sandbox, Path: "secret", Data: []byte(canaries["a file"])})
	require.NoError(t, err)
	read, err := l.API.ReadFile(t.Context(), &computev1.ReadFileRequest{SandboxId: sandbox, Path: "secret"})
	require.NoError(t, err)
	require.Equal(t, canaries["a file"], string(read.GetData()))

	// A service is killed while the command runs, and the next one goes on with it.
	running := l.Begin(t, len("begun\n"), run("sh", "-c", "echo begun; cat >/dev/null; while [ ! -e go-on ]; do sleep 0.1; done"))
	l.host(t)
	l.Kill("exec")
	l.Respawn("exec")
	l.host(t)
	require.Eventually(t, func() bool {
		_, err := l.API.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: sandbox, Path: "go-on", Data: []byte("1")})
		return err == nil
	}, 20*time.Second, 50*time.Millisecond)
	l.Finish(t, &running)
	l.Usage(t, r.ID)
	l.refused(t, sandbox)
	l.files(t)
	l.Destroy(t, sandbox)
}

// refused makes calls that fail and looks at what they answer.
func (l *leakTest) refused(t *testing.T, sandbox string) {
	t.Helper()
	secret := canaries["a refused request"]
	fails := func(what string, err error) {
		t.Helper()
		require.Error(t, err, what)
		l.clean(t, what, []byte(prototext.Format(status.Convert(err).Proto())))
	}
	create := func(ctx context.Context, env map[string]string) error {
		_, err := l.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{Image: stack.Image, EnvVars: env})
		return err
	}
	ctx := t.Context()
	fails("a long value", create(ctx, map[string]string{"K": strings.Repeat(secret, 500)}))
	fails("a value with a zero byte", create(ctx, map[string]string{"K": secret + "\x00"}))
	fails("a bad name", create(ctx, map[string]string{"a name": secret}))
	fails("an idempotency key for another request", create(
		metadata.AppendToOutgoingContext(ctx, "idempotency-key", canaries["an idempotency key"]), map[string]string{"K": secret}))
	_, err := l.API.WriteFile(ctx, &computev1.WriteFileRequest{SandboxId: sandbox, Path: "../out", Data: []byte(secret)})
	fails("a path that escapes", err)
	_, err = all(l.API.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "true", Stdin: []byte(strings.Repeat(secret, 50_000))}))
	fails("too much standard input", err)
	l.Key = canaries["a key that is not valid"]
	_, err = l.API.ListSandboxes(ctx, &computev1.ListSandboxesRequest{})
	l.Key = canaries["an API key"]
	fails("a key that is not valid", err)
}

// files looks at every file of the state directory but images and workspaces, where the caller's own files are, and at who
// may read them.
func (l *leakTest) files(t *testing.T) {
	t.Helper()
	seen := 0
	require.NoError(t, filepath.WalkDir(l.State, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		require.NoError(t, err)
		rel, _ := filepath.Rel(l.State, path)
		if rel == "images" || rel == "workspaces" {
			return fs.SkipDir
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		require.NoError(t, err)
		if strings.HasPrefix(rel, "sandboxes/") {
			require.Zero(t, info.Mode().Perm()&0o077, "%s may be read by others: %s", rel, info.Mode())
			if d.IsDir() && strings.Count(rel, "/") > 1 {
				return fs.SkipDir // below it only root gets
			}
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err == nil {
			seen++
			l.clean(t, rel, data)
		}
		return nil
	}))
	require.Greater(t, seen, 20)
}

// stores looks at what NATS, ClickHouse, metrics, logs and traces hold.
func (l *leakTest) stores(t *testing.T) {
	t.Helper()
	var streams int
	for s := range l.JS.ListStreams(t.Context()).Info() {
		streams++
		stream, err := l.JS.Stream(t.Context(), s.Config.Name)
		require.NoError(t, err)
		for seq := max(s.State.FirstSeq, 1); seq <= s.State.LastSeq; seq++ {
			m, err := stream.GetMsg(t.Context(), seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			require.NoError(t, err)
			l.clean(t, m.Subject, slices.Concat([]byte(m.Subject), []byte(fmt.Sprint(m.Header)), m.Data))
		}
	}
	require.Greater(t, streams, 8)
	for _, name := range strings.Fields(l.Query(t, "SELECT name FROM system.tables WHERE database = 'agents'")) {
		l.clean(t, "table "+name, []byte(l.Query(t, "SELECT * FROM agents."+name+" FORMAT JSONEachRow")))
	}
	for _, name := range slices.Sorted(maps.Keys(l.ops)) {
		res, err := http.Get("http://" + l.ops[name] + "/metrics")
		require.NoError(t, err)
		text, err := io.ReadAll(res.Body)
		require.NoError(t, errors.Join(err, res.Body.Close()))
		require.Contains(t, string(text), "go_goroutines")
		l.clean(t, "metrics of "+name, text)
	}
	for _, name := range stack.Services {
		log := l.Log(name)
		require.Contains(t, log, `"level":"`, name)
		l.clean(t, "log of "+name, []byte(log))
	}
	require.Contains(t, l.Log("gateway"), `"level":"DEBUG"`)
	l.spans.mu.Lock()
	defer l.spans.mu.Unlock()
	require.NotEmpty(t, l.spans.raw)
	for _, raw := range l.spans.raw {
		l.clean(t, "a trace", raw)
	}
}

func TestSecretsOfCallersStandNowhere(t *testing.T) {
	needsHost(t)
	l := leakStack(t)
	l.use(t)
	l.stores(t)
}

func TestLeaksAreSeen(t *testing.T) {
	secret := canaries["a file"]
	for _, text := range []string{secret, "x" + secret + "y", hex.EncodeToString([]byte(secret)), base64.StdEncoding.EncodeToString([]byte(secret))} {
		require.Equal(t, []string{"a file"}, leaks([]byte(text)))
	}
	require.Empty(t, leaks([]byte("CANARY-file-")))
}
