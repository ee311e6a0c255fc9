package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// planVersion is that of what a checkpoint's digests mean.
const planVersion = 1

// maxCheckpoint bounds the file of a checkpoint, in bytes.
const maxCheckpoint = 1 << 20

// Checkpoint is the file that holds how far a replay is.
type Checkpoint string

// Load gives the state to go on from, false where there is no file yet.
func (c Checkpoint) Load() (State, bool, error) {
	info, err := os.Stat(string(c))
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, false, nil
	}
	if err == nil && info.Size() > maxCheckpoint {
		err = fmt.Errorf("%s is too large for a checkpoint", c)
	}
	if err != nil {
		return State{}, false, err
	}
	data, err := os.ReadFile(string(c))
	if err != nil {
		return State{}, false, err
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return s, false, fault.Newf(fault.InvalidArgument, fault.ReasonMalformed, "%s is no checkpoint of a replay", c)
	}
	return s, true, nil
}

// Save replaces the file at once: a reader finds the old one or the new.
func (c Checkpoint) Save(s State) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(string(c)), ".checkpoint-*")
	if err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), string(c))
	}
	if err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return nil
}

// Continue gives the state of a plan to go on from: that of a checkpoint which was of the same plan. To 0 in the plan is where the
// checkpoint was to end, or last. A checkpoint of another plan, or of another log, is fault.FailedPrecondition.
func Continue(p Plan, was State, there bool, last uint64) (State, error) {
	p.Version = planVersion
	if !there {
		if p.To == 0 {
			p.To = last
		}
		return Begin(p), nil
	}
	if p.To == 0 {
		p.To = was.To
	}
	if was.Version != p.Version || was.Log != p.Log || was.Into != p.Into || was.From != p.From || was.To != p.To || was.Subjects != p.Subjects ||
		!slices.Equal(was.Types, p.Types) {
		return State{}, fault.New(fault.FailedPrecondition, fault.ReasonConflict,
			"the checkpoint is that of another replay: of another log, or with other flags; give another file")
	}
	return was, nil
}
