package keeper

import (
	"path"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/task"
	"github.com/sandtrail/sandtrail/toolbox/watch"
)

// watchers are those that run. The kernel of a sandbox does not see what its keeper does in the workspace: they are told.
func (k *Keeper) watchers() (all []*task.Outside) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.execs {
		select {
		case <-p.done:
			continue
		default:
		}
		select {
		case <-p.launched:
			if p.outside != nil {
				all = append(all, p.outside)
			}
		default: // its pipe is not made yet
		}
	}
	return all
}

// guestPath is where the guest has what a call names.
func (k *Keeper) guestPath(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(k.spec.MountPath, name)
}

// write is files.Write, and tells watchers of it.
func (k *Keeper) write(r *toolboxv1.WriteFile) (*toolboxv1.WriteFileReply, error) {
	var told []*task.Outside
	if r.Last {
		told = k.watchers()
	}
	fresh := false
	if len(told) > 0 {
		_, err := k.files.Stat(&toolboxv1.StatFile{Path: r.Path})
		fresh = err != nil
	}
	reply, err := k.files.Write(r)
	if err != nil {
		return nil, err
	}
	for _, o := range told {
		if fresh {
			o.Tell(k.guestPath(r.Path), watch.Create)
		}
		o.Tell(k.guestPath(r.Path), watch.Write)
	}
	return reply, nil
}

// remove is files.Delete, and tells watchers of it.
func (k *Keeper) remove(r *toolboxv1.DeleteFile) (*toolboxv1.DeleteFileReply, error) {
	reply, err := k.files.Delete(r)
	if err != nil {
		return nil, err
	}
	for _, o := range k.watchers() {
		o.Tell(k.guestPath(r.Path), watch.Remove)
	}
	return reply, nil
}

// make is files.Make, and tells watchers of what it makes. That a directory was there before is told as well: who looks again finds it so.
func (k *Keeper) make(r *toolboxv1.MakeEntry) (*toolboxv1.MakeEntryReply, error) {
	reply, err := k.files.Make(r)
	if err != nil {
		return nil, err
	}
	for _, o := range k.watchers() {
		o.Tell(k.guestPath(r.Path), watch.Create)
	}
	return reply, nil
}
