package cli_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func TestExitCodesAndErrors(t *testing.T) {
	for code, want := range map[fault.Code]int{
		fault.InvalidArgument: cli.ExitRefused, fault.Conflict: cli.ExitRefused, fault.Unauthorized: cli.ExitRefused,
		fault.PermissionDenied: cli.ExitRefused, fault.FailedPrecondition: cli.ExitRefused, fault.ResourceExhausted: cli.ExitRefused,
		fault.NotFound: cli.ExitNotFound, fault.DeadlineExceeded: cli.ExitUnavailable, fault.Lost: cli.ExitUnknown,
		fault.Internal: cli.ExitFailed,
	} {
		f := newFake(t)
		f.fail = func(string, int) error {
			return failure(code, "some_reason", "a sentence\x1b[2J", map[string]string{"limits.cpu": "too much", "image": "none"})
		}
		for _, args := range [][]string{{"describe", box}, {"exec", box, "true"}, {"create"}, {"ls"}, {"events", "--tenant", "t"}, {"rm", box}} {
			r := f.run(t, args...)
			require.Equal(t, want, r.code, "%s %s", code, args)
			require.Empty(t, r.stdout)
			require.Regexp(t, `^sandtrail: (`+box+`: )?a sentence\?\[2J \(some_reason; correlation id corr-1234\)\n  image: none\n  limits.cpu: too much\n$`, r.stderr)
		}
		r := f.run(t, "describe", "-o", "json", box)
		require.Equal(t, want, r.code)
		var got struct {
			Error map[string]any `json:"error"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.stderr), &got))
		require.Equal(t, map[string]any{
			"code": string(code), "reason": "some_reason", "message": "a sentence\x1b[2J", "correlation_id": corr,
			"fields": map[string]any{"limits.cpu": "too much", "image": "none"}, "exit_code": float64(want),
		}, got.Error)
	}
}

func TestServerOutOfReach(t *testing.T) {
	f := newFake(t)
	f.server.Stop()
	start := time.Now()
	r := f.run(t, "describe", "--timeout", "500ms", box)
	require.Equal(t, cli.ExitUnavailable, r.code)
	require.Less(t, time.Since(start), 5*time.Second)

	f = newFake(t)
	f.boxes = sandboxes(1)
	f.fail = func(_ string, n int) error {
		if n < 3 {
			return status.Error(codes.Unavailable, "not yet")
		}
		return nil
	}
	require.Equal(t, 0, f.run(t, "describe", box).code, "a server that comes back is waited for")
}

func TestExtend(t *testing.T) {
	f := newFake(t)
	r := f.run(t, "extend", box, "90m")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, box+"  lives until 1970-01-01")
	require.Contains(t, f.run(t, "extend", "-o", "json", "--idempotency-key", "one", box, "90m").stdout, "1970-01-01T01:30:00Z")
	require.Equal(t, "one", f.header("ExtendSandbox", "idempotency-key")[1])
	require.Equal(t, cli.ExitNotFound, f.run(t, "extend", "0b8f3c2a-1d4e-4b6f-8c7d-9e0f1a2b3c4d", "90m").code)
	for _, bad := range [][]string{{"extend", box}, {"extend", box, "soon"}, {"extend", box, "-5m"}, {"extend", "x", "5m"}} {
		require.Equal(t, cli.ExitUsage, f.run(t, bad...).code, "%v", bad)
	}
	require.Equal(t, 0, f.run(t, "create", "--idle-timeout", "10m").code)
	require.Equal(t, 10*time.Minute, f.creates[0].GetLimits().GetIdleTimeout().AsDuration())
}

func TestUsageMistakes(t *testing.T) {
	f := newFake(t)
	for _, args := range [][]string{
		{"lss"},
		{"ls", "--bogus"},
		{"ls", "--status", "happy"},
		{"ls", "--all", "--status", "ready"},
		{"describe", "not-an-id"},
		{"exec", box},
		{"exec", box, "--"},
		{"exec", "--bogus", box, "true"},
		{"exec", "--env", "NOT_SET_ANYWHERE", box, "true"},
		{"create", "--cpu", "lots"},
		{"create", "--memory", "1.0000001Ki"},
		{"create", "--label", "novalue"},
		{"cp", "a", "b"},
		{"cp", box + ":a", box + ":b"},
		{"cp", "-", box + ":dir/"},
		{"events", "--type", "SandboxReadyy"},
		{"usage", "ls", "--sandbox", "x"},
		{"completion", "tcsh"},
	} {
		r := f.run(t, args...)
		require.Equal(t, cli.ExitUsage, r.code, "%s: %s", args, r.stderr)
		require.NotEmpty(t, r.stderr)
		require.Empty(t, f.calls, "%s asks nobody", args)
	}
	r := f.run(t, "ls", "--bogus", "--output", "json")
	require.JSONEq(t, `{"error":{"code":"usage","message":"unknown flag --bogus","exit_code":240}}`, r.stderr)
}

func TestSecretsStayInside(t *testing.T) {
	f := newFake(t)
	f.fail = func(string, int) error { return failure(fault.Internal, fault.ReasonInternal, "no", nil) }
	const key, value = "sk_live_SECRETKEY", "SECRETVALUE"
	t.Setenv("SANDTRAIL_API_KEY", key)
	for _, args := range [][]string{
		{"create", "--env", "TOKEN=" + value, "-o", "json"},
		{"create", "--env", "=" + value},
		{"create", "--env", "A=" + value, "--env", "A=" + value},
		{"exec", "--env", "TOKEN=" + value, box, "true"},
		{"ls", "--grpc", "192.0.2.1:50051"},
		{"ls", "--bogus"},
	} {
		r := f.run(t, args...)
		require.NotZero(t, r.code)
		require.NotContains(t, r.stdout+r.stderr, value)
		require.NotContains(t, r.stdout+r.stderr, key)
	}
	require.Equal(t, "ApiKey "+key, f.header("CreateSandbox", "authorization")[0])
	require.Contains(t, f.run(t, "ls", "--grpc", "192.0.2.1:50051").stderr, "--tls", "the key does not travel in clear")

	file := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, []byte("from-file\n"), 0o600))
	f.run(t, "describe", "--api-key-file", file, box)
	require.Equal(t, "ApiKey from-file", f.header("DescribeSandbox", "authorization")[0])
	for _, help := range []string{"create", "exec", "ls"} {
		require.NotContains(t, f.run(t, help, "--help").stdout, "--api-key=", "a key on a command line is seen by everybody")
	}
}

func TestCreate(t *testing.T) {
	f := newFake(t)
	f.fail = func(method string, n int) error {
		if method == "CreateSandbox" && n == 1 {
			return status.Error(codes.Unavailable, "the answer is lost")
		}
		return nil
	}
	f.boxes = sandboxes(2)
	f.boxes[0].Status = computev1.SandboxStatus_SANDBOX_STATUS_STARTING
	r := f.run(t, "create", "--session", "s1", "--env", "A=1", "--label", "team=x", "--cpu", "1.5", "--memory", "512Mi", "--workspace", "64Mi",
		"--mount-path", "/w", "--max-runtime", "1h", "--pids", "64", "--wait")
	require.Equal(t, result{0, box + "\n", ""}, r)
	require.Equal(t, 2, f.count("DescribeSandbox"), "asked until it was ready")
	keys := f.header("CreateSandbox", "idempotency-key")
	require.Len(t, keys, 2)
	require.Equal(t, keys[0], keys[1])
	require.NotEmpty(t, keys[0])
	want := `{"tenant_id":"default","session_id":"s1","image":"ghcr.io/paper-board/sandbox-python:v0.1.0","env_vars":{"A":"1"},"labels":{"team":"x"},
		"limits":{"cpu_millis":1500,"memory_bytes":"536870912","max_runtime":"3600s","pids":64},"workspace":{"size":"64Mi","mount_path":"/w"}}`
	got, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(f.creates[0])
	require.NoError(t, err)
	require.JSONEq(t, want, string(got))

	t.Run("the key says whose it is", func(t *testing.T) {
		t.Setenv("SANDTRAIL_API_KEY", "k")
		require.Equal(t, 0, f.run(t, "create").code)
		require.Empty(t, f.creates[1].GetTenantId())
	})
	t.Run("one that fails is told, with its id", func(t *testing.T) {
		f.boxes = []*computev1.DescribeSandboxResponse{{
			SandboxId: box, Status: computev1.SandboxStatus_SANDBOX_STATUS_FAILED,
			Detail: &computev1.SandboxDetail{State: "failed", Reason: "there is no such image", ReasonCode: "image_not_found"},
		}}
		r := f.run(t, "create", "--wait")
		require.Equal(t, cli.ExitRefused, r.code)
		require.Equal(t, box+"\n", r.stdout)
		require.Contains(t, r.stderr, "there is no such image (image_not_found)")
		var doc map[string]any
		r = f.run(t, "create", "--wait", "-o", "json")
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &doc))
		require.Equal(t, "SANDBOX_STATUS_FAILED", doc["status"])
	})
}

func TestLsFollowsEveryPage(t *testing.T) {
	f := newFake(t)
	f.boxes = sandboxes(450)
	f.boxes[7].Detail.SessionId = "evil\x1b]0;title\a"
	r := f.run(t, "ls", "-o", "json")
	require.Equal(t, 0, r.code)
	var all []map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &all))
	require.Len(t, all, 450)
	require.Equal(t, 3, f.count("ListSandboxes"))
	require.NotContains(t, f.lists[0].GetStatuses(), computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED, "live ones only")

	r = f.run(t, "ls", "--all", "--limit", "201")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	require.Len(t, lines, 202)
	require.Empty(t, f.lists[3].GetStatuses())
	require.EqualValues(t, 1, f.lists[4].GetPage().GetLimit())
	require.NotContains(t, r.stdout, "\x1b", "names from elsewhere do not reach the terminal's control")
	for _, l := range lines {
		require.Equal(t, strings.Index(lines[0], "TENANT"), strings.Index(strings.Replace(l, "acme", "TENANT", 1), "TENANT"), "aligned")
	}

	f.boxes = nil
	require.Equal(t, "[]\n", f.run(t, "ls", "-o", "json").stdout)
	require.Equal(t, 0, f.run(t, "ls", "--status", "failed,destroyed", "--session", "s").code)
	last := f.lists[len(f.lists)-1]
	require.Equal(t, "s", last.GetSessionId())
	require.Len(t, last.GetStatuses(), 2)
}

func TestRm(t *testing.T) {
	f := newFake(t)
	gone := "11111111-1111-4111-8111-111111111111"
	r := f.run(t, "rm", gone, box, box)
	require.Equal(t, cli.ExitNotFound, r.code)
	require.Regexp(t, `^`+box+`  gone, took [0-9.]+m?s\n$`, r.stdout, "how long it was up is another matter")
	require.Contains(t, r.stderr, gone+": there is no sandbox")
	require.Equal(t, 2, f.count("DestroySandbox"))
	require.Equal(t, 0, f.run(t, "rm", box).code)
	var all []map[string]any
	require.NoError(t, json.Unmarshal([]byte(f.run(t, "rm", "-o", "json", box).stdout), &all))
	require.Equal(t, box, all[0]["sandbox_id"])
}

func TestCpFiles(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	content := make([]byte, 9<<20+17)
	_, err := rand.Read(content)
	require.NoError(t, err)
	local := filepath.Join(dir, "big:file")
	require.NoError(t, os.WriteFile(local, content, 0o640))
	f.loseWrite = 2 // a part that was taken and not answered is sent again, and is there once
	r := f.run(t, "cp", local, box+":data/")
	require.Equal(t, 0, r.code, r.stderr)
	require.True(t, bytes.Equal(content, f.files["data/big:file"].data))
	require.EqualValues(t, 0o640, f.files["data/big:file"].mode)
	require.Contains(t, r.stderr, "1 file, 9.0 MiB copied")

	back := filepath.Join(dir, "back")
	r = f.run(t, "cp", "-o", "json", box+":data/big:file", back)
	require.JSONEq(t, fmt.Sprintf(`{"files":1,"bytes":%d,"skipped":[]}`, len(content)), r.stdout)
	got, err := os.ReadFile(back)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, got))
	info, err := os.Stat(back)
	require.NoError(t, err)
	require.EqualValues(t, 0o640, info.Mode().Perm())

	r = f.run(t, "cp", box+":data/big:file", "-")
	require.Equal(t, string(content), r.stdout)
	require.Equal(t, 0, f.runWith(t, nil, nil, "cp", "-", box+":empty").code)
	require.NotNil(t, f.files["empty"])
	require.Equal(t, cli.ExitNotFound, f.run(t, "cp", box+":nothing", back).code)
	got, err = os.ReadFile(back)
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, got), "a copy that fails leaves what was there")
}

func TestCpDirectories(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "src", "a", "b"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "src", "one"), []byte("1"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "src", "a", "b", "two"), []byte("2"), 0o755))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "src", "link")))
	require.Equal(t, cli.ExitUsage, f.run(t, "cp", filepath.Join(dir, "src"), box+":in").code, "without -r")
	r := f.run(t, "cp", "-r", filepath.Join(dir, "src"), box+":in")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stderr, "link is left out")
	require.Len(t, f.files, 2)
	require.Equal(t, "2", string(f.files["in/a/b/two"].data))

	// What a sandbox calls its files must not lead out of the target.
	outside := filepath.Join(dir, "outside")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "out"), 0o755))
	require.NoError(t, os.Mkdir(outside, 0o755))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "out", "trap")))
	f.extra = []*computev1.FileEntry{
		{Path: "in", IsDir: true},
		{Path: "in/a", IsDir: true},
		{Path: "in/lnk", LinkTarget: "/etc"},
		{Path: "in/pipe"},
		{Path: "in/../../evil"},
		{Path: "in//abs"},
	}
	r = f.run(t, "cp", "-r", box+":in", filepath.Join(dir, "out"))
	require.Equal(t, 0, r.code, r.stderr)
	for _, left := range []string{"in/lnk", "in/pipe", "in/../../evil", "in//abs"} {
		require.Contains(t, r.stderr, left+" is left out")
	}
	got, err := os.ReadFile(filepath.Join(dir, "out", "a", "b", "two"))
	require.NoError(t, err)
	require.Equal(t, "2", string(got))
	f.files["in/trap/x"] = &file{data: []byte("x")}
	r = f.run(t, "cp", "-r", box+":in", filepath.Join(dir, "out"))
	require.NotZero(t, r.code)
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left)
}

// history is what happened to a sandbox and one exec of it.
func history() (log []*computev1.WatchEventsResponse) {
	at := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	add := func(agg subject.Aggregate, m proto.Message) {
		body, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		text, err := protojson.Marshal(m)
		if err != nil {
			panic(err)
		}
		e := &computev1.WatchEventsResponse{
			Sequence: uint64(10 * (len(log) + 1)), Subject: agg.Subject(), Id: fmt.Sprint(len(log)), TenantId: "acme", SandboxId: box,
			Type: string(m.ProtoReflect().Descriptor().FullName()), Body: body, BodyJson: string(text), Actor: "dev",
			Time: timestamppb.New(at.Add(time.Duration(len(log)) * time.Second)),
		}
		if agg.Kind == subject.KindExec {
			e.ExecId = agg.ID
		}
		log = append(log, e)
	}
	s, x := subject.Sandbox("acme", box), subject.Exec("acme", box, xid)
	add(s, &eventsv1.SandboxRequested{SandboxId: box, Image: "img", Placement: &eventsv1.Placement{Worker: "w1"}, Workspace: &eventsv1.Workspace{SizeBytes: 5 << 30, MountPath: "/workspace"}})
	add(s, &eventsv1.SandboxStarting{Worker: "w1", Attempt: 1})
	add(s, &eventsv1.SandboxReady{Worker: "w1", Hostname: "sandbox-f47ac10b"})
	add(x, &eventsv1.ExecStarted{SandboxId: box, ExecId: xid, Spec: &eventsv1.ExecSpec{Command: "echo", Args: []string{"\x1b[31mred"}}})
	add(x, &eventsv1.ExecCompleted{ExitCode: 3, Reason: "exited", WallTimeUs: 12_000})
	add(s, &eventsv1.SandboxDestroying{Reason: "requested"})
	return log
}

func TestEvents(t *testing.T) {
	f := newFake(t)
	f.log, f.logCut = history(), 2
	r := f.run(t, "events", "--tenant", "acme")
	require.Equal(t, 0, r.code, r.stderr)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	require.Len(t, lines, 6, "each once, over three cuts: %s", r.stdout)
	require.Contains(t, lines[2], "SandboxReady")
	require.Contains(t, lines[3], "echo ?[31mred")
	require.Contains(t, lines[4], "exit code 3 after 12ms")

	r = f.run(t, "events", "--sandbox", box, "--after", "20", "--type", "sandboxready,ExecCompleted", "-o", "json")
	lines = strings.Split(strings.TrimSpace(r.stdout), "\n")
	require.Len(t, lines, 2)
	var e struct {
		Sequence string         `json:"sequence"`
		Type     string         `json:"type"`
		ExecID   string         `json:"exec_id"`
		Body     map[string]any `json:"body"`
	}
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &e))
	require.Equal(t, "50", e.Sequence)
	require.Equal(t, "sandtrail.events.v1.ExecCompleted", e.Type)
	require.Equal(t, xid, e.ExecID)
	require.EqualValues(t, 3, e.Body["exitCode"])
}

func TestEventsFollowUntilInterrupted(t *testing.T) {
	f := newFake(t)
	f.log = history()
	signals := make(chan os.Signal, 1)
	go func() {
		for f.count("WatchEvents") == 0 {
			runtime.Gosched()
		}
		signals <- os.Interrupt
	}()
	r := f.runWith(t, nil, signals, "events", "--tenant", "acme", "--follow")
	require.Equal(t, cli.ExitCancelled, r.code)
}

func TestReplaySandbox(t *testing.T) {
	f := newFake(t)
	f.log = history()
	for at, want := range map[string]string{"10": "requested", "25": "starting", "35": "ready", "0": "destroying"} {
		r := f.run(t, "replay", "sandbox", box, "--at", at, "-o", "json")
		require.Equal(t, 0, r.code, r.stderr)
		var doc struct {
			Detail struct {
				State     string            `json:"state"`
				Workspace map[string]string `json:"workspace"`
			} `json:"detail"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &doc))
		require.Equal(t, want, doc.Detail.State)
		require.Equal(t, "5Gi", doc.Detail.Workspace["size"])
	}
	require.Contains(t, f.run(t, "replay", "sandbox", box, "--at", "35").stdout, "sandbox-f47ac10b")
	require.Equal(t, cli.ExitNotFound, f.run(t, "replay", "sandbox", box, "--at", "5").code)
	f.log[1].Type = "sandtrail.events.v9.Unheard"
	require.Contains(t, f.run(t, "replay", "sandbox", box).stderr, "unknown_event", "never a state that leaves an event out")
}

func TestUsageLs(t *testing.T) {
	f := newFake(t)
	for i := range 230 {
		f.rows = append(f.rows, &computev1.UsageRow{Id: fmt.Sprintf("row-%d", i), EventType: "exec_command", ExecId: xid, ExitCode: proto.Int32(0)})
	}
	var all []map[string]any
	require.NoError(t, json.Unmarshal([]byte(f.run(t, "usage", "ls", "-o", "json").stdout), &all))
	require.Len(t, all, 50)
	require.Equal(t, "row-0", all[0]["id"])
	require.EqualValues(t, 0, all[0]["exit_code"])
	require.Equal(t, 231, strings.Count(f.run(t, "usage", "ls", "--limit", "0").stdout, "\n"))
}

func TestCompletion(t *testing.T) {
	f := newFake(t)
	for words, want := range map[string]string{
		"des":                         "describe",
		"ls --status rea":             "ready",
		"ls --outp":                   "--output",
		"ls --grpc x --output=json -": "",
		"replay ":                     "exec run sandbox tenant",
		"completion z":                "zsh",
		"ls --output=js":              "--output=json",
		"ls --output = js":            "json",
		"exec " + box + " -- --":      "",
	} {
		r := f.run(t, append([]string{"__complete", "--"}, strings.Split(words, " ")...)...)
		require.Equal(t, 0, r.code)
		if got := strings.Join(strings.Fields(r.stdout), " "); want != "" || words == "exec "+box+" -- --" {
			require.Equal(t, want, got, words)
		} else {
			require.Contains(t, got, "--tenant")
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		require.Contains(t, f.run(t, "completion", shell).stdout, "__complete")
	}
}

func TestHelpNamesEveryExitCode(t *testing.T) {
	f := newFake(t)
	for _, args := range [][]string{{"help"}, {}, {"--help"}, {"exec", "--help"}, {"help", "exec"}} {
		r := f.run(t, args...)
		require.Equal(t, 0, r.code)
		for _, code := range []int{cli.ExitUsage, cli.ExitRefused, cli.ExitNotFound, cli.ExitUnavailable, cli.ExitUnknown, cli.ExitCancelled, cli.ExitFailed} {
			require.Contains(t, r.stdout, fmt.Sprintf("\n    %d  ", code), "%s", args)
		}
	}
	for _, args := range []string{"create", "ls", "describe", "extend", "rm", "exec", "cp", "events", "replay exec", "replay sandbox", "replay tenant", "trace", "usage ls"} {
		help := f.run(t, append(strings.Fields(args), "--help")...).stdout
		for _, flag := range []string{"--grpc", "SANDTRAIL_ADDR", "--output", "--api-key-file", "--tenant"} {
			require.Contains(t, help, flag, args)
		}
	}
}
