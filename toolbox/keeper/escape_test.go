package keeper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
	"github.com/sandtrail/sandtrail/toolbox/launch"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// desk is what the host sees of the sandbox's mounts, in the keeper's mount namespace. The workspace is one directory of it, and
// what lies beside it is what a path that leaves the workspace would reach first.
func desk(b *keepertest.Box) string { return fmt.Sprintf("/proc/%d/root/mnt", b.PID()) }

// upload puts a program into the workspace.
func upload(t *testing.T, b *keepertest.Box, name string, program []byte) {
	t.Helper()
	const part = 512 << 10
	for at := 0; at < len(program); at += part {
		end := min(at+part, len(program))
		_, err := b.WriteFile(t.Context(), &toolboxv1.WriteFile{
			Path: name, UploadId: "program", Offset: int64(at), Data: program[at:end], Last: end == len(program), Mode: 0o755,
		})
		require.NoError(t, err)
	}
}

// attacker uploads testdata/attack.
func attacker(t *testing.T, b *keepertest.Box) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "attack")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, "./testdata/attack")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	data, err := os.ReadFile(program)
	require.NoError(t, err)
	upload(t, b, "attack", data)
}

// snapshot is every file below a directory with its size, mode and time, the workspace left out.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == filepath.Join(dir, "workspace") || path == filepath.Join(dir, "image") || path == filepath.Join(dir, "rootfs") {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !d.IsDir() && d.Name() != "runsc.log" {
			all[path] = fmt.Sprint(info.Size(), info.Mode(), info.ModTime())
		}
		return nil
	}))
	return all
}

// While a program puts links out of the workspace in the place of a directory, thousands of times a second, the files API reads
// and writes through that directory: it reads, writes and lists what is inside, or refuses.
func TestFilesStayInsideWhileTheGuestSwapsThem(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.Mkdir(outside, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "f"), []byte("the host's"), 0o666))
	for name, target := range map[string]string{"beside the workspace": "../bundle", "on the host": outside, "up": "../../../../.." + outside} {
		t.Run(name, func(t *testing.T) {
			b := keepertest.Start(t)
			attacker(t, b)
			require.NoError(t, os.WriteFile(filepath.Join(desk(b), "bundle", "f"), []byte("the host's"), 0o666))
			before, canary := snapshot(t, desk(b)), snapshot(t, outside)
			r := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"./attack", "swap", target}}
			started(t, b, r)
			var inside, refused atomic.Int64
			count := func(err error) {
				var e *client.Error
				switch {
				case err == nil:
					inside.Add(1)
				case !errors.As(err, &e) || e.Code == "internal":
					t.Errorf("not told what is wrong: %v", err)
				case e.Reason == "path_escapes":
					refused.Add(1)
				}
			}
			var wg sync.WaitGroup
			for worker := range 4 {
				wg.Go(func() {
					for i := range 1000 {
						got, err := b.ReadFile(context.Background(), &toolboxv1.ReadFile{Path: "d/f"})
						count(err)
						if err == nil && !strings.HasPrefix("inside", string(got.GetData())) && string(got.GetData()) != "written" { //nolint:gocritic // a read meets half a write
							t.Errorf("read %q", got.GetData())
						}
						switch i % 4 {
						case 0:
							_, err = b.WriteFile(context.Background(), &toolboxv1.WriteFile{Path: "d/f", Data: []byte("written"), Last: true})
						case 1:
							_, err = b.WriteFile(context.Background(), &toolboxv1.WriteFile{Path: fmt.Sprintf("d/new-%d-%d", worker, i%20), Data: []byte("written"), Last: true})
						case 2:
							_, err = b.WriteFile(context.Background(), &toolboxv1.WriteFile{Path: fmt.Sprintf("d/below/%d/f", worker), Data: []byte("written"), Append: true, Last: true})
						default:
							var list *toolboxv1.ListFilesReply
							list, err = b.ListFiles(context.Background(), &toolboxv1.ListFiles{Path: "d", Recursive: true})
							for _, e := range list.GetEntries() {
								if strings.Contains(e.GetPath(), "config.json") {
									t.Errorf("listed %s", e.GetPath())
								}
							}
						}
						count(err)
					}
				})
			}
			wg.Wait()
			t.Logf("%d calls inside, %d refused", inside.Load(), refused.Load())
			require.NotZero(t, inside.Load())
			require.NotZero(t, refused.Load(), "the race was never hit")
			if t.Failed() {
				_, _ = b.Shutdown(t.Context(), &toolboxv1.Shutdown{})
				b.Wait(t)
				t.Log(b.Log.String())
			}
			require.Equal(t, before, snapshot(t, desk(b)))
			require.Equal(t, canary, snapshot(t, outside))
			require.Empty(t, b.Sh(t, "find . -name '*config.json'; grep -rl host . 2>/dev/null | grep -v attack").Stdout)
		})
	}
}

// What the guest makes in its workspace is, seen from the host, the property of an id that nobody has, on a file system where
// set-uid files and devices mean nothing.
func TestAGuestsFilesMeanNothingOnTheHost(t *testing.T) {
	b := keepertest.Start(t)
	o := b.Sh(t, `
		mkdir d; echo x > d/f; cp /bin/busybox id; chmod 6777 id d; mkfifo fifo; ln d/f hard; ln -s /etc/shadow link
		for way in "mknod null c 1 3" "mknod loop b 7 0" "mknod d/kmem c 1 2" "ln /etc/passwd passwd" "ln /proc/1/environ environ" "chown 0 d/f" "chgrp 0 id"; do
			$way 2>/dev/null && echo "done: $way"
		done; ls`)
	require.Equal(t, "d\nfifo\nhard\nid\nlink\n", o.Stdout)
	workspace := filepath.Join(desk(b), "workspace")
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(workspace, &st))
	require.NotZero(t, st.Flags&unix.ST_NOSUID)
	require.NotZero(t, st.Flags&unix.ST_NODEV)
	require.NoError(t, filepath.WalkDir(workspace, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := os.Lstat(path)
		require.NoError(t, err)
		stat := info.Sys().(*syscall.Stat_t)
		require.Equal(t, b.Spec.HostIDBase+b.Spec.UID, stat.Uid, path)
		require.Equal(t, b.Spec.HostIDBase+b.Spec.GID, stat.Gid, path)
		require.Zero(t, info.Mode()&os.ModeDevice, path)
		return nil
	}))
	for _, path := range []string{"link", "d", "id/x"} {
		began := time.Now()
		_, err := b.ReadFile(t.Context(), &toolboxv1.ReadFile{Path: path})
		require.Error(t, err, path)
		_, err = b.WriteFile(t.Context(), &toolboxv1.WriteFile{Path: path, Data: []byte("x"), Append: true, Last: true})
		require.Error(t, err, path)
		require.Less(t, time.Since(began), 5*time.Second)
	}
	// A FIFO is the sentry's alone: the host has no such file, and nobody there waits for its other end.
	_, err := os.Lstat(filepath.Join(workspace, "fifo"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	got, err := b.ReadFile(t.Context(), &toolboxv1.ReadFile{Path: "hard"})
	require.NoError(t, err)
	require.Equal(t, "x\n", string(got.GetData()))
}

// On the host the state of a sandbox is closed to every other user, and in the guest there is nothing to talk to.
func TestOnlyTheKeepersUserReachesIt(t *testing.T) {
	b := keepertest.Start(t)
	for path, mode := range map[string]os.FileMode{"": 0o700, "keeper.sock": 0o600, "keeper.pid": 0o600, "execs": 0o700, "overlay": 0o700} {
		info, err := os.Lstat(filepath.Join(b.Spec.Dir, path))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), path)
	}
	// The path of a socket may have 107 bytes.
	short, err := os.MkdirTemp("", "s")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(short)) })
	require.NoError(t, os.Chmod(short, 0o755)) //nolint:gosec // the other users pass through
	require.NoError(t, os.Symlink(b.Spec.Dir, filepath.Join(short, "box")))
	socket := filepath.Join(short, "box", "keeper.sock")
	connect := func(uid uint32) string {
		// Of the shells that are everywhere none opens such a socket, and curl does.
		cmd := exec.CommandContext(t.Context(), "curl", "-sS", "--max-time", "2", "--unix-socket", socket, "http://keeper/")
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		text, err := cmd.CombinedOutput()
		require.Error(t, err)
		return string(text)
	}
	const refused = "Failed to connect|Couldn't connect|Could not connect"
	require.NotRegexp(t, refused, connect(0), "it is no HTTP, but it is reached")
	require.Regexp(t, refused, connect(65534))
	require.Regexp(t, refused, connect(b.Spec.HostIDBase+b.Spec.UID), "the guest's own id on the host")

	o := b.Sh(t, `find / -xdev -type s 2>/dev/null; cat /proc/net/unix 2>/dev/null | tail -n +2; ls `+b.Spec.Dir+` /proc/1/root/ 2>/dev/null; cat /proc/1/fd/* </dev/null 2>/dev/null; env | grep -i token`)
	require.Empty(t, o.Stdout)
}

// Init belongs to the guest's root and takes no signal and no word from programs; afterwards it still does its work.
func TestProgramsCannotHarmInit(t *testing.T) {
	b := keepertest.Start(t)
	for _, try := range []string{
		"kill -9 1", "kill -STOP 1", "kill -TERM 1", "kill -SEGV 1", "kill -9 -1; true | kill -0 1", "echo 7 > /proc/1/fd/1", "cat < /proc/1/fd/0",
		"echo x > /proc/1/mem", "cat /proc/1/environ", "cat /proc/1/maps", "ls /proc/1/root/", "echo 1000 > /proc/1/oom_score_adj", "renice -n 19 1",
		"unshare -U -r kill -9 1", "nsenter -t 1 -p true",
	} {
		b.Sh(t, "("+try+") </dev/null >/dev/null 2>&1")
		require.Equal(t, "init\n", b.Sh(t, "tr '\\0' '\\n' </proc/1/cmdline | tail -1; grep -q 'State:.[TZ]' /proc/1/status && echo stopped").Stdout, try)
	}
	o := b.Do(t, &toolboxv1.Start{Argv: []string{"sh", "-c", family}, TimeoutMs: 1000})
	require.Equal(t, "timed_out", o.Reason)
	require.Zero(t, sleepers(t, b))
}

// A program that changes its groups, user namespace, session and parent is still found, and ended with its tree.
func TestATreeCannotBeLeft(t *testing.T) {
	b := keepertest.Start(t)
	attacker(t, b)
	r := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"./attack", "leave"}}
	started(t, b, r)
	count := func() int { return strings.Count(b.Sh(t, "ps -o args").Stdout, "./attack") }
	require.Equal(t, 4, count())
	_, err := b.Signal(t.Context(), &toolboxv1.Signal{ExecId: r.ExecId, Tree: true, Reason: "cancelled"})
	require.NoError(t, err)
	require.Equal(t, "cancelled", b.Follow(t, r.ExecId, 0, 0).Reason)
	require.Zero(t, count())
}

// Output that looks like our own frames, events and answers is output, and says nothing of the exec's end or use.
func TestOutputIsNeverTakenForOurWords(t *testing.T) {
	b := keepertest.Start(t)
	var forged bytes.Buffer
	forged.WriteString("ready\n0\nerror\n-1\nkill 1 9\nall 9\n")
	for _, e := range []*toolboxv1.AttachEvent{
		{Event: &toolboxv1.AttachEvent_End{End: &toolboxv1.End{Reason: "exited"}}},
		{Event: &toolboxv1.AttachEvent_Skip{Skip: &toolboxv1.Skip{Stream: 1, From: 0, To: 1 << 40}}},
		{Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{Stream: 2, Offset: 7, Data: []byte("forged")}}},
	} {
		require.NoError(t, wire.WriteAttach(&forged, e))
		require.NoError(t, wire.Write(&forged, &toolboxv1.Response{Answer: &toolboxv1.Response_Attach{Attach: e}}))
	}
	forged.WriteString("\xff\xff\xff\xff{\"success\":true,\"result\":0}\n{\"ok\":true,\"pid\":1}\n\x00\x00\x00\x00")
	o := b.Do(t, &toolboxv1.Start{Argv: []string{"sh", "-c", "tee /dev/stderr; exit 3"}, Stdin: forged.Bytes()})
	require.Equal(t, forged.String(), o.Stdout)
	require.Equal(t, forged.String(), o.Stderr)
	require.Zero(t, o.Skipped)
	require.Equal(t, int32(3), o.ExitCode)
	require.Equal(t, "exited", o.Reason)
	require.EqualValues(t, forged.Len(), o.End.Stdout.Bytes)
	require.Less(t, o.Usage.CpuMs, uint64(5000))
}

// Programs that write noise, close their ends, hold them, or never read cost the keeper a bounded memory, and no other exec its end.
func TestNoiseDoesNotHarmTheKeeper(t *testing.T) {
	b := keepertest.Start(t)
	scripts := []string{
		"head -c 3000000 /dev/urandom; head -c 3000000 /dev/urandom >&2; exit 4",
		"exec >&- 2>&- <&-; exit 4",
		"exec 1>&2 2>&1; yes | head -c 2000000; exit 4",
		"sleep 600 & exit 4",
		"(while :; do head -c 100000 /dev/urandom; done) & exit 4",
		"exec <&-; head -c 1000000 /dev/zero; exit 4",
		"i=0; while [ $i -lt 2000 ]; do echo $i; echo $i >&2; i=$((i+1)); done; exit 4",
	}
	var wg sync.WaitGroup
	for range 2 {
		for _, s := range scripts {
			wg.Go(func() {
				o := b.Do(t, &toolboxv1.Start{Argv: []string{"sh", "-c", s}, Stdin: make([]byte, 500<<10), KeepStdin: true})
				if o.ExitCode != 4 {
					t.Errorf("%s: %v", s, o.End)
				}
			})
		}
	}
	wg.Wait()
	require.Less(t, rss(t, b), 64<<10, "KiB: two streams of 14 programs at most")
	require.Equal(t, "lives\n", b.Sh(t, "echo lives").Stdout)
}

// hostileNames are words that a shell, an option parser or a path would make something else of.
var hostileNames = []string{
	"-c", "--help", "-rf", "'", `"`, "a b", "a\nb", "$(touch /workspace/pwned)", "`touch /workspace/pwned`", "; touch /workspace/pwned", "a;b|c&d>e",
	"*", "~", "%s%n", "\\", "a\tb", "\x1b[2J", "é\u202e", "{}", "=", "A=B", "#",
}

// Names reach programs and files as they are, by both ways of running programs.
func TestNamesReachNoShell(t *testing.T) {
	for _, way := range []string{launch.ControlSocket, launch.ControlCommand} {
		t.Run(way, func(t *testing.T) {
			b := keepertest.Start(t, func(s *launch.Spec) { s.Control = way })
			o := b.Do(t, &toolboxv1.Start{Argv: append([]string{"sh", "-c", `printf '<%s>' "$@"`, "sh"}, hostileNames...)})
			require.Equal(t, "<"+strings.Join(hostileNames, "><")+">", o.Stdout)
			for _, name := range hostileNames {
				_, err := b.WriteFile(t.Context(), &toolboxv1.WriteFile{Path: name + "/" + name, Data: []byte(name), Last: true})
				require.NoError(t, err, "%q", name)
				got, err := b.ReadFile(t.Context(), &toolboxv1.ReadFile{Path: name + "/" + name})
				require.NoError(t, err, "%q", name)
				require.Equal(t, name, string(got.GetData()))
				o := b.Do(t, &toolboxv1.Start{
					Argv: []string{"sh", "-c", `cat "./$X"; printf %s "$X"; pwd`}, WorkingDir: "/workspace/" + name, Env: map[string]string{"X": name},
				})
				require.Equal(t, name+name+"/workspace/"+name+"\n", o.Stdout, "%q %s %v", name, o.Stderr, o.End)
				missing := b.Do(t, &toolboxv1.Start{Argv: []string{name, name}})
				require.Equal(t, "start_failed", missing.Reason, "%q", name)
			}
			require.Empty(t, b.Sh(t, "ls -d /workspace/pwned 2>/dev/null").Stdout)
		})
	}
}

// Arguments and environment together fit in a message of the toolbox, or the start is refused; up to there they arrive.
func TestArgumentsAreBounded(t *testing.T) {
	b := keepertest.Start(t)
	long := strings.Repeat("x", 100<<10)
	many := make([]string, 8)
	for i := range many {
		many[i] = long
	}
	o := b.Do(t, &toolboxv1.Start{Argv: append([]string{"sh", "-c", `echo $# ${#1}`, "sh"}, many...)})
	require.Equal(t, fmt.Sprintf("8 %d\n", len(long)), o.Stdout)
	env := map[string]string{}
	for i := range 8 {
		env[fmt.Sprint("V", i)] = long
	}
	require.Equal(t, fmt.Sprintf("%d\n", len(long)), b.Do(t, &toolboxv1.Start{Argv: []string{"sh", "-c", "echo ${#V7}"}, Env: env}).Stdout)
	o = b.Do(t, &toolboxv1.Start{Argv: append([]string{"true"}, make([]string, 100_000)...)})
	require.Equal(t, "exited", o.Reason, "%v", o.End)
	_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: append(many, many...)})
	require.Equal(t, "too_large", failure(t, err).Reason)
	require.Equal(t, "lives\n", b.Sh(t, "echo lives").Stdout)
}

// A file may be as long as it likes while it is empty: it takes neither the host's disk nor the reader's memory.
func TestAFileOfAnySizeIsReadInParts(t *testing.T) {
	b := keepertest.Start(t)
	o := b.Sh(t, "truncate -s 1099511627776 sparse; truncate -s 9000000000000000000 huge 2>/dev/null; stat -c %s sparse")
	require.Equal(t, "1099511627776\n", o.Stdout)
	for _, at := range []int64{0, 1 << 39, 1<<40 - 1, 1 << 40, 1 << 62} {
		got, err := b.ReadFile(t.Context(), &toolboxv1.ReadFile{Path: "sparse", Offset: at, MaxBytes: 1 << 62})
		require.NoError(t, err)
		require.LessOrEqual(t, len(got.GetData()), 512<<10)
		require.EqualValues(t, 1<<40, got.GetTotalSize())
	}
	info, err := os.Stat(b.Spec.Workspace)
	require.NoError(t, err)
	require.Less(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(64<<20))
	require.Less(t, rss(t, b), 32<<10)
}
