package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// reasonOf is the reason of a failed call, empty for one that succeeded.
func reasonOf(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	for _, d := range status.Convert(err).Details() {
		if e, ok := d.(*commonv1.ErrorDetail); ok {
			return e.GetReason()
		}
	}
	require.Fail(t, "no ErrorDetail", "%v", err)
	return ""
}

// strange are texts that mean something to a shell, a terminal, a path or a program's flags. None of them may mean anything to us.
var strange = []string{
	"-rf", "--help", "a b", "line\nbreak", "tab\there", `qu"o'te`, "$(touch made)", "`touch made`", "; touch made", "| touch made", "&& touch made",
	"> made", "*", "?", "~", "...", "a=b=c", "=", "%s%n", `back\slash`, "ünï-\u202e-日本", "\x1b[31mred", "\r", "''",
}

func TestWhatCallersGiveIsDataEverywhere(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	sandbox := s.Ready(t)
	printed := func(t *testing.T, r stack.Result) (all []string) {
		t.Helper()
		require.Zero(t, r.Completed.GetExitCode(), "%s", r.Stderr)
		require.NoError(t, json.Unmarshal(r.Stdout, &all))
		return all
	}
	python := func(script string, args ...string) *computev1.ExecCommandRequest {
		return &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "python3", Args: append([]string{"-c", script}, args...)}
	}

	t.Run("as arguments", func(t *testing.T) {
		args := append(slices.Clone(strange), "")
		require.Equal(t, args, printed(t, s.Run(t, python("import json, sys; print(json.dumps(sys.argv[1:]))", args...))))
	})
	t.Run("as values of the environment", func(t *testing.T) {
		env := map[string]string{"EMPTY": "", "LONG": strings.Repeat("x", 4096)}
		names := []string{"EMPTY", "LONG"}
		for i, value := range strange {
			name := "V" + strings.Repeat("_", i)
			env[name] = value
			names = append(names, name)
		}
		req := python("import json, os, sys; print(json.dumps([os.environ[k] for k in sys.argv[1:]]))", names...)
		req.Env = env
		require.Equal(t, append([]string{"", env["LONG"]}, strange...), printed(t, s.Run(t, req)))
	})
	t.Run("as names of files", func(t *testing.T) {
		for _, name := range strange {
			path := "names/" + name
			w, err := s.API.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: sandbox, Path: path, Data: []byte(name)})
			require.NoError(t, err, "%q", name)
			require.EqualValues(t, len(name), w.GetSize())
			read, err := s.API.ReadFile(t.Context(), &computev1.ReadFileRequest{SandboxId: sandbox, Path: path})
			require.NoError(t, err, "%q", name)
			require.Equal(t, name, string(read.GetData()))
		}
		list, err := s.API.ListFiles(t.Context(), &computev1.ListFilesRequest{SandboxId: sandbox, Path: "names"})
		require.NoError(t, err)
		var listed []string
		for _, e := range list.GetEntries() {
			listed = append(listed, filepath.Base(e.GetPath()))
		}
		require.ElementsMatch(t, strange, listed)
		require.ElementsMatch(t, strange, printed(t, s.Run(t, python("import json, os; print(json.dumps(os.listdir('names')))"))))
	})
	t.Run("as a command and a directory", func(t *testing.T) {
		for _, name := range strange {
			require.EqualValues(t, 127, s.Exec(t, sandbox, name).Completed.GetExitCode(), "%q", name)
			req := python("import os, json; print(json.dumps([os.path.basename(os.getcwd())]))")
			req.WorkingDir = "dirs/" + name
			require.Zero(t, s.Run(t, python("import os, sys; os.makedirs(sys.argv[1])", req.GetWorkingDir())).Completed.GetExitCode())
			require.Equal(t, []string{name}, printed(t, s.Run(t, req)))
		}
	})
	require.Empty(t, string(s.Sh(t, sandbox, "find / -xdev -name made 2>/dev/null").Stdout))
}

func TestWhatIsNoFileIsRefusedAtOnce(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	sandbox := s.Ready(t)
	require.Zero(t, s.Sh(t, sandbox, `
		set -e; mkdir d; echo text > file; mkfifo fifo; ln -s fifo to-fifo; ln -s d to-d; ln -s /dev/zero zero; ln -s nowhere dangling; ln -s d/in to-in; ln -s loop loop
		python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'`).Completed.GetExitCode())
	events := len(s.Events(t, sandbox))
	// A FIFO and a socket that a program makes are the sentry's: on the host nothing has their name.
	none := "path_not_found"
	for path, want := range map[string][3]string{ // read, write, list; -: not asked
		"d": {"path_not_file", "path_not_file", ""}, "to-d": {"path_not_file", "path_not_file", ""},
		"fifo": {none, "-", none}, "to-fifo": {none, "-", none}, "socket": {none, "-", none},
		"zero": {"path_escapes", "path_escapes", "path_escapes"}, "/dev/zero": {"path_escapes", "path_escapes", "path_escapes"},
		"loop":       {"path_not_found", "path_not_found", "path_not_found"},
		"file/below": {"path_not_directory", "path_not_directory", "path_not_directory"},
		"file":       {"", "", "path_not_directory"}, "none": {"path_not_found", "", "path_not_directory"},
		"gone/at/all": {"path_not_found", "", "path_not_directory"},
		"dangling":    {"path_not_found", "", "path_not_directory"}, "to-in": {"path_not_found", "", "path_not_directory"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := s.API.ReadFile(ctx, &computev1.ReadFileRequest{SandboxId: sandbox, Path: path})
		require.Equal(t, want[0], reasonOf(t, err), "read %s", path)
		if want[1] != "-" {
			_, err = s.API.WriteFile(ctx, &computev1.WriteFileRequest{SandboxId: sandbox, Path: path, Data: []byte("new")})
			require.Equal(t, want[1], reasonOf(t, err), "write %s", path)
		}
		_, err = s.API.ListFiles(ctx, &computev1.ListFilesRequest{SandboxId: sandbox, Path: path})
		require.Equal(t, want[2], reasonOf(t, err), "list %s", path)
		cancel()
	}
	require.Equal(t, "new\nnew\n", string(s.Sh(t, sandbox, "cat nowhere; echo; cat d/in; echo").Stdout), "links that stay inside are followed")
	require.Len(t, s.Events(t, sandbox), events+2, "file calls leave no events: those of the last command are the only ones")
}

func TestImageThatCannotRunFailsWithTheReasonAndLeavesNothing(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	for image, want := range map[string]string{
		"UPPER/case:v1": "image_invalid", "/etc/passwd": "image_invalid", "../../etc": "image_invalid", "127.0.0.1:1/none:v1": "image_pull_failed",
	} {
		sandbox := s.Create(t, func(r *computev1.CreateSandboxRequest) { r.Image = image })
		require.Eventually(t, func() bool {
			return s.Describe(t, sandbox).GetStatus() == computev1.SandboxStatus_SANDBOX_STATUS_FAILED
		}, time.Minute, 50*time.Millisecond, image)
		d := s.Describe(t, sandbox).GetDetail()
		require.Equal(t, want, d.GetReasonCode(), "%s: %s", image, d.GetReason())
		require.NotEmpty(t, d.GetReason(), image)
		_, err := all(s.API.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: sandbox, Command: "true"}))
		require.Equal(t, "sandbox_failed", reasonOf(t, err), image)
		require.Contains(t, status.Convert(err).Message(), d.GetReason(), image)
		require.Eventually(t, func() bool {
			kept, err := filepath.Glob(filepath.Join(s.State, "sandboxes", sandbox, "keeper.pid"))
			return err == nil && len(kept) == 0
		}, 20*time.Second, 50*time.Millisecond, "a keeper of %s", image)
	}
}

// Ready means that an exec works, also for whoever does not ask: thirty times, each with the first command on its heels.
func TestThirtyCommandsRightBehindTheirCreate(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	for range 10 {
		var wait sync.WaitGroup
		errs := make([]error, 3)
		for i := range errs {
			wait.Go(func() { errs[i] = createAndRun(t.Context(), s) })
		}
		wait.Wait()
		require.NoError(t, errors.Join(errs...))
	}
}

func createAndRun(ctx context.Context, s *stack.Stack) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	box, err := s.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: "acme", Image: stack.Image})
	if err != nil {
		return err
	}
	stream, err := s.API.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: box.GetSandboxId(), Command: "echo", Args: []string{"hi"}})
	if err != nil {
		return err
	}
	var r stack.Result
	if err := r.Read(stream); err != nil {
		return err
	}
	if string(r.Stdout) != "hi\n" || r.Completed.GetExitCode() != 0 {
		return errors.New("the command did not run")
	}
	_, err = s.API.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: box.GetSandboxId()})
	return err
}

// Twenty clients who create with one key at once get one sandbox, of which there is one on the host.
func TestOneKeyFromTwentyClientsMakesOneSandbox(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "one"), time.Minute)
	defer cancel()
	ids, errs := make([]string, 20), make([]error, 20)
	var wait sync.WaitGroup
	for i := range ids {
		wait.Go(func() {
			box, err := s.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: "acme", Image: stack.Image})
			ids[i], errs[i] = box.GetSandboxId(), err
		})
	}
	wait.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(ids))), 1)
	require.Equal(t, "hi\n", string(s.Exec(t, ids[0], "echo", "hi").Stdout))
	require.Equal(t, []string{"SandboxRequested", "SandboxStarting", "SandboxReady"}, s.SandboxEvents(t, ids[0]))
	require.Eventually(t, func() bool {
		list, err := s.API.ListSandboxes(t.Context(), &computev1.ListSandboxesRequest{})
		return err == nil && len(list.GetSandboxes()) == 1
	}, 20*time.Second, 50*time.Millisecond)
	hosts, err := filepath.Glob(filepath.Join(s.State, "sandboxes", "*-*-*"))
	require.NoError(t, err)
	require.Len(t, hosts, 1)
	require.Equal(t, codes.AlreadyExists, func() codes.Code {
		_, err := s.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: "acme", Image: stack.Image, SessionId: "another"})
		return status.Code(err)
	}())
}

// A stream has no end of its own: it lasts as long as its command.
func TestACommandMayWriteForMoreThanAMinute(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	sandbox := s.Ready(t)
	r := s.Sh(t, sandbox, "for i in $(seq 70); do echo $i; sleep 1; done")
	require.Equal(t, "exited", r.Completed.GetReason())
	require.Greater(t, r.Completed.GetWallTime().AsDuration(), 70*time.Second)
	require.Len(t, strings.Fields(string(r.Stdout)), 70)
}
