package evidence

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// CountStarts reads a witness file: one token a line. A last line without its end counts: its program has begun.
func CountStarts(sandbox string, file []byte) Witness {
	w := Witness{Sandbox: sandbox, Starts: map[string]int{}}
	for line := range bytes.SplitSeq(file, []byte("\n")) {
		if token := string(bytes.TrimSpace(line)); token != "" {
			w.Starts[token]++
		}
	}
	return w
}

// witness reads the witness file of a sandbox from its workspace on the host, whether it runs or is gone. One whose workspace is
// gone too, or never was here, has none: false. A workspace without the file is one in which nothing was started.
func (h Host) witness(ctx context.Context, sandbox string) (Witness, bool, error) {
	var paths []string
	for _, r := range h.Found {
		// The keeper's own mount: only the kernel that has it mounted knows all that was written.
		if r.Kind == Mount && r.Sandbox == sandbox && strings.HasPrefix(r.Detail, "/dev/loop") {
			paths = append(paths, fmt.Sprintf("/proc/%d/root%s", r.PID, r.Name))
		}
	}
	base := filepath.Join(h.StateDir, "workspaces", sandbox)
	for _, dir := range append(paths, filepath.Join(base+".dir", "files")) {
		if _, err := os.Stat(dir); err != nil {
			continue // it has gone since
		}
		data, err := os.ReadFile(filepath.Join(dir, journal.Witness))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Witness{}, false, fmt.Errorf("read the witness of sandbox %s: %w", sandbox, err)
		}
		return CountStarts(sandbox, data), true, nil
	}
	image := base + ".img"
	if _, err := os.Stat(image); err != nil {
		return Witness{}, false, nil //nolint:nilerr // there is none
	}
	data, err := readImage(ctx, image)
	if err != nil {
		return Witness{}, false, fmt.Errorf("read the witness of sandbox %s: %w", sandbox, err)
	}
	return CountStarts(sandbox, data), true, nil
}

// readImage reads the witness file from the file system of a workspace that nothing has mounted, without mounting it: nothing of
// the host is changed. Without the file it gives nothing.
func readImage(ctx context.Context, image string) ([]byte, error) {
	dirty, err := unclean(image)
	if err != nil {
		return nil, err
	}
	if dirty {
		mended, err := mend(ctx, image)
		if err != nil {
			return nil, err
		}
		defer os.Remove(mended)
		image = mended
	}
	var out, text bytes.Buffer
	// -c: without a look at the bitmaps. Where the host's disk was full they may be behind, and a file is read all the same.
	cmd := exec.CommandContext(ctx, program("debugfs"), "-c", "-R", "cat /"+journal.Witness, image)
	cmd.Stdout, cmd.Stderr = &out, &text
	switch err := cmd.Run(); {
	case err != nil:
		return nil, fmt.Errorf("%w: %s", err, text.String())
	case strings.Contains(text.String(), "File not found"):
		return nil, nil
	case strings.Contains(text.String(), "while"):
		// It ends with 0 whatever it met.
		return nil, errors.New(text.String())
	}
	return out.Bytes(), nil
}

// The superblock of ext4 lies at 1024; where its magic number, its state and its features that a reader must know stand in it.
const (
	superblock = 1024
	magicAt    = 0x38
	stateAt    = 0x3a
	incompatAt = 0x60

	magic        = 0xef53
	stateErrors  = 2
	needsRecover = 4
)

// unclean reports whether the journal of a file system has what is not in its place yet, or the file system has failed: what is read past
// the journal is then a mixture of old and new, such as a directory's block in the place of a file's.
func unclean(image string) (bool, error) {
	f, err := os.Open(image)
	if err != nil {
		return false, err
	}
	defer f.Close()
	head := make([]byte, incompatAt+4)
	if _, err := f.ReadAt(head, superblock); err != nil {
		return false, fmt.Errorf("read the superblock: %w", err)
	}
	if binary.LittleEndian.Uint16(head[magicAt:]) != magic {
		return false, errors.New("the image has no ext4 file system")
	}
	return binary.LittleEndian.Uint16(head[stateAt:])&stateErrors != 0 || binary.LittleEndian.Uint32(head[incompatAt:])&needsRecover != 0, nil
}

// mend makes a copy of an image with its journal replayed. Remove it.
func mend(ctx context.Context, image string) (_ string, err error) {
	f, err := os.CreateTemp("", "chaos-workspace-*.img")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err := f.Close(); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, "cp", "--sparse=always", image, f.Name()).CombinedOutput(); err != nil {
		return "", fmt.Errorf("copy an image: %w: %s", err, out)
	}
	out, err := exec.CommandContext(ctx, program("e2fsck"), "-f", "-y", f.Name()).CombinedOutput()
	// 1: it was mended.
	if code := (&exec.ExitError{}); err != nil && (!errors.As(err, &code) || code.ExitCode() > 1) {
		return "", fmt.Errorf("replay the journal of an image: %w: %s", err, out)
	}
	return f.Name(), nil
}

// program finds one of e2fsprogs, which lies in an sbin that is not always in PATH.
func program(name string) string {
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	return name
}
