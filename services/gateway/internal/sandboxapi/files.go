package sandboxapi

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/content"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// entry is a file or directory as it is shown.
type entry struct {
	Name    string     `json:"name"`
	Path    string     `json:"path"`
	IsDir   bool       `json:"is_dir"`
	Size    uint64     `json:"size"`
	ModTime *time.Time `json:"mod_time"`
	Mode    string     `json:"mode"`
	// LinkTarget is where a symbolic link points to.
	LinkTarget string `json:"link_target,omitempty"`
}

// place is a sandbox with where its workspace is in it.
type place struct {
	id, root string
}

func (c *call) place() (place, error) {
	id, err := c.box()
	if err != nil {
		return place{}, err
	}
	s, err := c.use.Located(c.ctx, c.p, id)
	return place{id: id, root: path.Clean(orElse(s.Workspace.GetMountPath(), "/workspace"))}, err
}

// abs is a path as the guest has it: relative ones are in the workspace.
func (p place) abs(name string) string {
	if !strings.HasPrefix(name, "/") {
		name = p.root + "/" + name
	}
	return path.Clean(name)
}

func (p place) entry(f *commandsv1.FileInfo) entry {
	e := entry{
		Name: path.Base(f.GetPath()), Path: p.abs(f.GetPath()), IsDir: f.GetIsDir(), Size: f.GetSize(), Mode: fmt.Sprintf("%04o", f.GetMode()),
		LinkTarget: f.GetLinkTarget(),
	}
	if f.GetModifiedAt() != nil {
		at := f.GetModifiedAt().AsTime()
		e.ModTime = &at
	}
	return e
}

// maxPath is what Linux allows.
const maxPath = 4096

// param is a parameter that is needed and holds a path.
func (c *call) param(name string) (string, error) {
	p := c.r.URL.Query().Get(name)
	switch {
	case p == "":
		return "", field(name, "is needed")
	case len(p) > maxPath || strings.IndexByte(p, 0) >= 0:
		return "", field(name, "must be a path of at most 4,096 bytes without a zero byte")
	}
	return p, nil
}

// checkQuery refuses a request that was made of parameters.
func (c *call) checkQuery(m proto.Message) error {
	bad, err := c.Violations(m)
	if err != nil {
		return err
	}
	return invalid(bad)
}

// listFiles lists a directory, the workspace where none is named. Both names of the list are in use.
func (c *call) listFiles() error {
	p, err := c.place()
	if err != nil {
		return err
	}
	dir := c.r.URL.Query().Get("path")
	if err := c.checkQuery(&computev1.ListFilesRequest{SandboxId: p.id, Path: dir}); err != nil {
		return err
	}
	found, truncated, err := c.use.ListFiles(c.ctx, c.p, p.id, dir, false, 0)
	if err != nil {
		return err
	}
	all := make([]entry, 0, len(found))
	for _, f := range found {
		all = append(all, p.entry(f))
	}
	return c.answer(http.StatusOK, map[string]any{"path": p.abs(dir), "files": all, "entries": all, "truncated": truncated})
}

func (c *call) fileInfo() error {
	p, err := c.place()
	if err != nil {
		return err
	}
	name, err := c.param("path")
	if err != nil {
		return err
	}
	e, err := c.stat(p, name)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, e)
}

// maxSiblings is how many files beside the one that is meant are looked through.
const maxSiblings = 10_000

// stat finds a file among those beside it. Where there are too many it is read to see that it is there.
func (c *call) stat(p place, name string) (entry, error) {
	at := p.abs(name)
	if at == p.root {
		if _, _, err := c.use.ListFiles(c.ctx, c.p, p.id, at, false, 1); err != nil {
			return entry{}, err
		}
		return entry{Name: path.Base(at), Path: at, IsDir: true}, nil
	}
	siblings, truncated, err := c.use.ListFiles(c.ctx, c.p, p.id, path.Dir(at), false, maxSiblings)
	if err != nil {
		return entry{}, err
	}
	i := slices.IndexFunc(siblings, func(f *commandsv1.FileInfo) bool { return p.abs(f.GetPath()) == at })
	switch {
	case i >= 0:
		return p.entry(siblings[i]), nil
	case !truncated:
		return entry{}, fault.New(fault.NotFound, fault.ReasonPathNotFound, "nothing is at the path")
	}
	_, size, _, err := c.use.ReadFile(c.ctx, c.p, p.id, at, 0, 1)
	return entry{Name: path.Base(at), Path: at, Size: uint64(max(size, 0))}, err
}

// download answers a file, or a range of it, as bytes; with format=tar a directory as an archive.
func (c *call) download() error {
	switch format := c.r.URL.Query().Get("format"); format {
	case "":
	case "tar":
		return c.downloadTree()
	default:
		return field("format", "must be tar, or left out for a file")
	}
	p, err := c.place()
	if err != nil {
		return err
	}
	name, err := c.param("path")
	if err != nil {
		return err
	}
	a := content.Answer{
		Reply: c.Reply, W: c.w, R: c.r, Memory: c.memory, Sandbox: p.id, Path: p.abs(name),
		Open: func(ctx context.Context, digest bool) (*usecase.Reading, error) {
			f, err := c.use.OpenFile(ctx, c.p, p.id, name, digest)
			if err == nil {
				c.w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}))
			}
			return f, err
		},
	}
	return a.Send(c.ctx)
}

// ofPath answers that something was done at a path.
func (c *call) ofPath(at string) error {
	return c.answer(http.StatusOK, map[string]any{"success": true, "path": at})
}

// makeFolder makes a directory and those that it is in. One that is there is fine.
func (c *call) makeFolder() error {
	p, err := c.place()
	if err != nil {
		return err
	}
	name, err := c.param("path")
	if err != nil {
		return err
	}
	if _, err := c.script(p.id, `exec mkdir -p -- "$1"`, p.abs(name)); err != nil {
		return err
	}
	return c.ofPath(p.abs(name))
}

// moveFile moves or renames a file or directory. What is at the destination is replaced, but for a directory.
func (c *call) moveFile() error {
	p, err := c.place()
	if err != nil {
		return err
	}
	from, err := c.param("source")
	if err != nil {
		return err
	}
	to, err := c.param("destination")
	if err != nil {
		return err
	}
	const script = `[ -e "$1" ] || [ -L "$1" ] || exit 44
if [ -d "$2" ] && [ ! -L "$2" ]; then echo "the destination is a directory" >&2; exit 1; fi
exec mv -f -- "$1" "$2"`
	if _, err := c.script(p.id, script, p.abs(from), p.abs(to)); err != nil {
		return err
	}
	return c.answer(http.StatusOK, map[string]any{"success": true, "source": p.abs(from), "destination": p.abs(to)})
}

// deleteFile removes a file, or a directory with all that is in it.
func (c *call) deleteFile() error {
	p, err := c.place()
	if err != nil {
		return err
	}
	name, err := c.param("path")
	if err != nil {
		return err
	}
	at := p.abs(name)
	if at == "/" || at == p.root {
		return field("path", "must be below the workspace, not the workspace itself")
	}
	if _, err := c.script(p.id, `[ -e "$1" ] || [ -L "$1" ] || exit 44; exec rm -rf -- "$1"`, at); err != nil {
		return err
	}
	return c.ofPath(at)
}
