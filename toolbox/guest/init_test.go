package guest

import (
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMember(t *testing.T) {
	status := func(state, groups string) []byte {
		return []byte("Name:\tGroups: 7\nState:\t" + state + "\nGroups:\t" + groups + "\n")
	}
	for name, c := range map[string]struct {
		status     []byte
		dead, want bool
	}{
		"in":              {status("S (sleeping)", "5 7 "), false, true},
		"only its name":   {status("S (sleeping)", "5"), false, false},
		"part of another": {status("R (running)", "77 17"), false, false},
		"dead":            {status("Z (zombie)", "7"), false, false},
		"dead, asked for": {status("Z (zombie)", "7"), true, true},
		"none":            {nil, true, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, member(c.status, "7", c.dead)) })
	}
}

// A request that is not understood is answered and changes nothing; the end of the input ends init.
func TestRequests(t *testing.T) {
	child := exec.CommandContext(t.Context(), "sleep", "60")
	require.NoError(t, child.Start())
	var out strings.Builder
	require.NoError(t, Init(strings.NewReader("kill\nnonsense 1 2\nkill 4294967290 9\n"), &out))
	require.Equal(t, "ready\nerror unknown request\nerror unknown request\n0\n", out.String())
	require.NoError(t, child.Process.Kill())
	require.Error(t, Init(strings.NewReader("kill 4294967290 0\n"), failing{}))
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
