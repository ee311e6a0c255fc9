package seal

import (
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

type owned struct {
	fs.FileInfo
	uid int
}

func (o owned) Sys() any { return &syscall.Stat_t{Uid: uint32(o.uid)} } //nolint:gosec // a user id

func TestAKeyOfSomebodyElseMayBeReadByItsGroupAndByNobodyMore(t *testing.T) {
	mine, theirs := owned{uid: os.Geteuid()}, owned{uid: os.Geteuid() + 1}
	for mode, want := range map[fs.FileMode]struct{ mine, theirs bool }{
		0o400: {true, true}, 0o600: {true, true}, 0o440: {false, true}, 0o640: {false, true},
		0o660: {false, false}, 0o444: {false, false}, 0o644: {false, false}, 0o602: {false, false},
	} {
		require.Equal(t, want.mine, mode&^allowed(mine) == 0, "%#o of one's own", mode)
		require.Equal(t, want.theirs, mode&^allowed(theirs) == 0, "%#o of somebody else", mode)
	}
}
