package runtimetest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
)

// RunStops is the contract of runtime.Stopper; open is called once for each test in it. The image must have GNU's stat and bash.
func RunStops(t *testing.T, open func(t *testing.T) Fixture) {
	for name, test := range map[string]func(*testing.T, Fixture, runtime.Stopper){
		"a stopped sandbox comes back as it was": comesBack,
		"again and again with what changed":      again,
		"stop is repeatable":                     stopTwice,
		"a stopped sandbox can be destroyed":     destroyStopped,
		"what cannot be stopped":                 cannotStop,
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t)
			s, ok := f.Driver.(runtime.Stopper)
			require.True(t, ok)
			test(t, f, s)
		})
	}
}

// outside is a place that programs may write to and that is no workspace.
const outside = "/var/tmp"

func comesBack(t *testing.T, f Fixture, stopper runtime.Stopper) {
	s := spec(f)
	s.Note = []byte("a note")
	create(t, f, s)
	before := sh(t, f, s.ID, `
		cd `+outside+`
		mkdir -p dir/empty && echo root > dir/file && chmod 640 dir/file && touch -d @1700000000 dir/file
		ln -s dir/file link && ln dir/file hard && mkfifo pipe && printf '' > none
		head -c 3000000 /dev/zero | tr '\0' x > big && truncate -s 1G sparse
		echo work > /workspace/mark && echo gone > /tmp/mark
		(sleep 600 &) ; setsid sleep 601 >/dev/null 2>&1 &
		stat -c '%n %F %a %u %s %h' dir dir/empty dir/file link hard pipe none big sparse; stat -c %Y dir/file`)
	u, err := stopper.Stop(t.Context(), s.ID)
	require.NoError(t, err)
	require.Positive(t, u.Uptime)
	require.Empty(t, f.Leftovers(s.ID), "nothing of it runs or is mounted")
	st, err := f.Driver.Inspect(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, runtime.Status{ID: s.ID, Tenant: "acme", Exists: true, Stopped: true}, st)
	all, err := f.Driver.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []runtime.Status{st}, all)
	require.Equal(t, fault.Conflict, fault.CodeOf(f.Driver.DeleteWorkspace(t.Context(), s.ID)))
	note, err := stopper.Note(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, s.Note, note)

	s.Resume = true
	c := create(t, f, s)
	require.False(t, c.Warm)
	after := sh(t, f, s.ID, `cd `+outside+`
		stat -c '%n %F %a %u %s %h' dir dir/empty dir/file link hard pipe none big sparse; stat -c %Y dir/file`)
	require.Equal(t, before, after)
	require.Equal(t, "root work", sh(t, f, s.ID, "cd "+outside+"; echo $(cat link) $(cat /workspace/mark)"))
	require.Equal(t, "3000000", sh(t, f, s.ID, "tr -d -c x < "+outside+"/big | wc -c"))
	require.Equal(t, "0", sh(t, f, s.ID, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 60[01]' || true"), "processes do not come back")
	_, exit, err := f.Exec(t.Context(), s.ID, "cat /tmp/mark")
	require.NoError(t, err)
	require.NotZero(t, exit, "/tmp is memory: it does not come back")
	require.Equal(t, s.Hostname, sh(t, f, s.ID, "cat /proc/sys/kernel/hostname"))
	require.Equal(t, "hello", sh(t, f, s.ID, "echo $GREETING"))
	require.Equal(t, "64", sh(t, f, s.ID, "bash -c 'ulimit -u'"), "its limits hold again")
	note, err = stopper.Note(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, s.Note, note)
}

func again(t *testing.T, f Fixture, stopper runtime.Stopper) {
	s := spec(f)
	create(t, f, s)
	for _, text := range []string{"one", "two", "three"} {
		_, exit, err := f.Exec(t.Context(), s.ID, "cd "+outside+" && rm -f mark.* && echo "+text+" > mark."+text)
		require.NoError(t, err)
		require.Zero(t, exit)
		_, err = stopper.Stop(t.Context(), s.ID)
		require.NoError(t, err)
		s.Resume = true
		create(t, f, s)
		require.Equal(t, "mark."+text, sh(t, f, s.ID, "cd "+outside+" && ls -d mark.*"))
	}
	_, err := stopper.Stop(t.Context(), s.ID)
	require.NoError(t, err, "also where nothing has changed")
}

func stopTwice(t *testing.T, f Fixture, stopper runtime.Stopper) {
	s := spec(f)
	create(t, f, s)
	sh(t, f, s.ID, "echo kept > "+outside+"/mark; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
	first, err := stopper.Stop(t.Context(), s.ID)
	require.NoError(t, err)
	require.Positive(t, first.CPUMillis)
	second, err := stopper.Stop(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, first, second, "it says the same again")
	s.Resume = true
	create(t, f, s)
	_, err = f.Driver.Create(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, "kept", sh(t, f, s.ID, "cat "+outside+"/mark"))
}

func destroyStopped(t *testing.T, f Fixture, stopper runtime.Stopper) {
	s := spec(f)
	s.Note = []byte("a note")
	create(t, f, s)
	sh(t, f, s.ID, "echo kept > /workspace/mark")
	_, err := stopper.Stop(t.Context(), s.ID)
	require.NoError(t, err)
	_, err = f.Driver.Destroy(t.Context(), s.ID)
	require.NoError(t, err)
	st, err := f.Driver.Inspect(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, runtime.Status{ID: s.ID}, st)
	note, err := stopper.Note(t.Context(), s.ID)
	require.NoError(t, err)
	require.Empty(t, note)
	require.NoError(t, f.Driver.DeleteWorkspace(t.Context(), s.ID))
}

func cannotStop(t *testing.T, f Fixture, stopper runtime.Stopper) {
	_, err := stopper.Stop(t.Context(), ids.New())
	require.True(t, fault.Is(err, fault.ReasonSandboxLost), "%v", err)
	_, err = stopper.Stop(t.Context(), strings.Repeat("x", 8))
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
	s := spec(f)
	s.Resume = true
	_, err = f.Driver.Create(t.Context(), s)
	require.True(t, fault.Is(err, fault.ReasonSandboxLost), "%v", err)
	require.Empty(t, f.Leftovers(s.ID))
}
