package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/toolbox/launch"
	"github.com/sandtrail/sandtrail/toolbox/sentry"
)

// What a sandbox wrote outside of its workspace is in the memory of its sentry and in a file without a name beside it: both end with the
// sentry. runsc can write such a layer down, as a tree with the places of all contents and the contents in one file, and start another
// sentry with it, which reads the contents while programs run already.

const (
	// keepTimeout bounds writing a root down; its size is bounded, the disk's speed is not.
	keepTimeout = 5 * time.Minute
	// settleTimeout bounds the wait until killed programs are gone: what they write is to be written down whole.
	settleTimeout = 5 * time.Second
)

// keepRoot writes down what was written outside of the workspace, once no program runs any more. Where it fails the sandbox goes on.
func (b *sandbox) keepRoot() (err error) {
	dir, err := b.realDir()
	if err != nil {
		return err
	}
	to, made := filepath.Join(dir, launch.KeptRoot), filepath.Join(dir, launch.KeptRoot+".new")
	if _, err := os.Lstat(to); err == nil {
		return nil
	}
	// An earlier attempt's: runsc wants to make the files itself.
	if err := os.RemoveAll(made); err != nil {
		return fmt.Errorf("keep root: %w", err)
	}
	if err := os.Mkdir(made, 0o700); err != nil {
		return fmt.Errorf("keep root: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(made))
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), keepTimeout)
	defer cancel()
	if err := b.runsc(ctx, func() error { return b.fits(made) }, "fscheckpoint", "-leave-running", "-image-path", made, b.spec.RuntimeID); err != nil {
		if errors.Is(err, errRootTooLarge) || ctx.Err() != nil {
			// It would go on without runsc.
			err = errors.Join(err, b.kill())
		}
		return fmt.Errorf("keep root: %w", err)
	}
	if err := flushFiles(made); err != nil {
		return fmt.Errorf("keep root: %w", err)
	}
	if err := os.Rename(made, to); err != nil {
		return fmt.Errorf("keep root: %w", err)
	}
	return nil
}

// errRootTooLarge: what a sandbox wrote outside of its workspace takes more to be written down than it may: it has too many files there,
// or too deep ones, each of which stands there with its whole path.
var errRootTooLarge = errors.New("there are too many files outside of the workspace to be kept, or they lie too deep")

// minTree of a root's tree may always be written down; treeShare of the sandbox's memory too, since a start reads the tree into memory.
const (
	minTree   = 32 << 20
	treeShare = 4
)

// fits looks whether a root that is being written down is larger than its contents and its tree may be.
func (b *sandbox) fits(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		most := max(minTree, b.spec.MemoryBytes/treeShare)
		if e.Name() == pagesFile {
			most = b.overlayBytes() + minTree
		}
		if uint64(info.Size()) > most { //nolint:gosec // not negative
			return errRootTooLarge
		}
	}
	return nil
}

// pagesFile is what runsc calls the file with all contents.
const pagesFile = "pages.img"

// realDir is the sandbox's directory as other processes find it.
func (b *sandbox) realDir() (string, error) {
	if b.held == nil {
		return b.dir, nil
	}
	dir, err := os.Readlink(b.dir)
	if err != nil {
		return "", fmt.Errorf("find the sandbox's directory: %w", err)
	}
	return dir, nil
}

// lookAgain is between two looks at what runsc does.
const lookAgain = 20 * time.Millisecond

// runsc runs it with a command on the sandbox and waits for its end, or until look gives an error.
func (b *sandbox) runsc(ctx context.Context, look func() error, args ...string) error {
	said, err := os.CreateTemp(b.desk, "said")
	if err != nil {
		return err
	}
	defer said.Close()
	defer os.Remove(said.Name())
	cmd := exec.Command(b.spec.Runsc, append(b.flags("/dev/null"), args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stderr = said
	child, ended, err := b.children.Start(cmd)
	if err != nil {
		return fmt.Errorf("start runsc %s: %w", args[0], err)
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case status := <-ended:
			if status.Exited() && status.ExitStatus() == 0 {
				return look()
			}
			words, _ := io.ReadAll(io.NewSectionReader(said, 0, maxSaid))
			return fmt.Errorf("runsc %s ended with %#x: %s", args[0], uint32(status), words)
		case <-tick.C:
			err = look()
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			_ = syscall.Kill(child, syscall.SIGKILL)
			return fmt.Errorf("runsc %s: %w", args[0], err)
		}
	}
}

// maxSaid is read of what runsc says about a failure.
const maxSaid = 2 << 10

func flushFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, name := range append([]string{"."}, names(entries)...) {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func names(entries []os.DirEntry) []string {
	all := make([]string, 0, len(entries))
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// putBack are the arguments with which a sandbox starts on the root of an earlier run.
func (b *sandbox) putBack() []string {
	if b.spec.Root == "" {
		return nil
	}
	return []string{"-fs-restore-image-path", b.spec.Root}
}

// emptyRoot gives the space of a root that was put back to the host, once the sentry has read it and nobody can find it any more: the
// sentry keeps its files open for as long as it lives.
func (b *sandbox) emptyRoot(files []*os.File) {
	defer closeAll(files)
	ctx, cancel := context.WithTimeout(context.Background(), keepTimeout)
	defer cancel()
	err := b.runsc(ctx, func() error { return nil }, "wait", "-fsrestore", b.spec.RuntimeID)
	for _, f := range files {
		if err == nil {
			err = b.emptied(ctx, f)
		}
	}
	select {
	case <-b.gone:
		return
	default:
	}
	if err != nil {
		b.log.Warn("the root of an earlier run takes up space until the sandbox ends", "error", err)
	}
}

// emptied empties a file once it has no name any more.
func (b *sandbox) emptied(ctx context.Context, f *os.File) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return err
		}
		if st.Nlink == 0 {
			return f.Truncate(0)
		}
		select {
		case <-tick.C:
		case <-b.gone:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// openRoot opens the files of a root that is to be put back.
func (b *sandbox) openRoot() ([]*os.File, error) {
	if b.spec.Root == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(b.spec.Root)
	if err != nil {
		return nil, fmt.Errorf("open the root of an earlier run: %w", err)
	}
	var files []*os.File
	for _, name := range names(entries) {
		f, err := os.OpenFile(filepath.Join(b.spec.Root, name), os.O_RDWR, 0)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("open the root of an earlier run: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

// keepRoot is that of a sandbox that is stopped. lost says for people why there is no root to keep any more; an error that it may work later.
func (k *Keeper) keepRoot(alive bool) (lost string, err error) {
	select {
	case <-k.box.gone:
		alive = false
	default:
	}
	if !alive {
		return "it ended by itself before", nil
	}
	err = k.quiet()
	if err == nil {
		err = k.box.keepRoot()
	}
	if err == nil {
		return "", nil
	}
	k.log.Error("root not kept", "error", err)
	select {
	case <-k.box.gone:
	case <-time.After(settleTimeout):
		return "", err
	}
	if errors.Is(err, errRootTooLarge) {
		return errRootTooLarge.Error(), nil
	}
	return "it ended while its root was kept", nil
}

// quiet kills every program and waits until none lives.
func (k *Keeper) quiet() error {
	deadline := time.Now().Add(settleTimeout)
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		census, err := k.box.control.SignalGroup(context.Background(), func(group uint32) bool { return group > firstTag }, syscall.SIGKILL)
		switch {
		case errors.Is(err, sentry.ErrUnsupported):
			return k.box.link.killAll(syscall.SIGKILL)
		case err != nil:
			return fmt.Errorf("end the programs: %w", err)
		case census.Members == 0:
			return nil
		case time.Now().After(deadline):
			return errors.New("the programs do not end")
		}
		time.Sleep(wait)
	}
}
