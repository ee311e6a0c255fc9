package task

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/terminal"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

const (
	// helperTime is how long a helper may take to say how its start went, resizeTime how long it may take to take a size.
	helperTime = 15 * time.Second
	resizeTime = time.Second
)

// Terminal is what a toolbox has of the terminal of a program: the pipes to the helper that holds it.
type Terminal struct {
	// Files become descriptors 3 and 4 of the helper; Started closes them here.
	Files []*os.File

	mu    sync.Mutex
	sizes *os.File
	said  *os.File
}

// CheckTerminal refuses a size that no terminal may have, as invalid_argument. nil is no terminal.
func CheckTerminal(size *commonv1.TerminalSize) error {
	if size == nil || terminal.Valid(size) {
		return nil
	}
	return wire.NewError("invalid_argument", "validation", fmt.Sprintf("a terminal has 1 to %d columns and 1 to %d rows", terminal.MostColumns, terminal.MostRows))
}

// CheckInstance refuses a start that is meant for another toolbox than the one of this instance.
func CheckInstance(r *toolboxv1.Start, instance string) error {
	if r.Instance == "" || r.Instance == instance {
		return nil
	}
	return wire.NewError("unavailable", "toolbox_unavailable", "this is another run of the sandbox than the one that is to start the command")
}

// NewTerminal makes the pipes for a helper that begins with a size.
func NewTerminal(size *commonv1.TerminalSize) (*Terminal, error) {
	in, sizes, err := pipe(0, 1)
	if err != nil {
		return nil, fmt.Errorf("make pipe to a terminal: %w", err)
	}
	said, out, err := pipe(0, 0)
	if err != nil {
		in.Close()
		sizes.Close()
		return nil, fmt.Errorf("make pipe from a terminal: %w", err)
	}
	t := &Terminal{Files: []*os.File{in, out}, sizes: sizes, said: said}
	if err := t.size(size); err != nil {
		t.release()
		t.Close()
		return nil, err
	}
	return t, nil
}

func (t *Terminal) release() {
	for _, f := range t.Files {
		f.Close()
	}
	t.Files = nil
}

// Started gives up the helper's ends of the pipes and waits until the program runs. A terminal.StartError says why it does not.
func (t *Terminal) Started() error {
	t.release()
	defer t.said.Close()
	_ = t.said.SetReadDeadline(time.Now().Add(helperTime))
	var word [1]byte
	if n, _ := t.said.Read(word[:]); n == 0 {
		return terminal.ErrOther
	}
	if word[0] != 0 {
		return terminal.StartError(word[0])
	}
	return nil
}

// Resize answers a Resize call.
func (t *Terminal) Resize(r *toolboxv1.Resize) (*toolboxv1.ResizeReply, error) {
	if r.GetSize() == nil {
		return nil, wire.NewError("invalid_argument", "validation", "size is needed")
	}
	if err := CheckTerminal(r.GetSize()); err != nil {
		return nil, err
	}
	if t == nil {
		return nil, wire.NewError("failed_precondition", "illegal_state", "the command has no terminal, or has ended")
	}
	switch err := t.size(r.GetSize()); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, wire.NewError("unavailable", "toolbox_unavailable", "the terminal does not take its size")
	case err != nil:
		return nil, wire.NewError("failed_precondition", "illegal_state", "the command has ended")
	}
	return &toolboxv1.ResizeReply{}, nil
}

// size writes a size. A pipe takes so few bytes whole or not at all.
func (t *Terminal) size(s *commonv1.TerminalSize) error {
	b := terminal.Encode(s)
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.sizes.SetWriteDeadline(time.Now().Add(resizeTime))
	_, err := t.sizes.Write(b[:])
	return err
}

// Close gives the pipes up; nil has none.
func (t *Terminal) Close() {
	if t == nil {
		return
	}
	t.release()
	t.sizes.Close()
	t.said.Close()
}
