package files

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// settles is how long after a change a further one may leave a file's times as they are: far more than the tick of any kernel's clock.
const settles = time.Second

// version is another one whenever the content of a file may be another. unsettled: it was changed so short a time ago that the next change
// may not show. The guest sets modification times as it likes; the time of the last change of the inode it does not.
func (f *Files) version(info os.FileInfo) (version string, unsettled bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", true
	}
	changed := time.Unix(st.Ctim.Unix())
	return fmt.Sprintf("%x-%x-%x", st.Ino, st.Size, changed.UnixNano()), f.options.Now().Sub(changed) < settles
}

// Stat tells of a regular file. For its digest all of it is read; one that changes meanwhile is a conflict.
func (f *Files) Stat(r *toolboxv1.StatFile) (*toolboxv1.StatFileReply, error) {
	rel, err := f.inside(r.Path)
	if err != nil {
		return nil, err
	}
	file, info, err := f.openFile(rel, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	reply := &toolboxv1.StatFileReply{Size: info.Size(), ModifiedAt: timestamppb.New(info.ModTime()), Mode: uint32(info.Mode().Perm())}
	reply.Version, reply.Unsettled = f.version(info)
	if !r.Digest {
		return reply, nil
	}
	sum := sha256.New()
	// No more than it had: a guest that goes on writing does not keep this reading.
	if _, err := io.Copy(sum, io.LimitReader(file, info.Size())); err != nil {
		return nil, classify(err)
	}
	after, err := file.Stat()
	if err != nil {
		return nil, classify(err)
	}
	if v, _ := f.version(after); v != reply.Version {
		return nil, changed()
	}
	reply.Sha256 = sum.Sum(nil)
	return reply, nil
}
