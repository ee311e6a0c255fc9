package httpapi

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/content"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// maxFile is the most bytes of a file that any gateway takes in one call; its own limit and the workspace's size come before it.
const maxFile = 1 << 40

// fileRequest is the path of a file, checked by the contract's own rules.
func (c *call) fileRequest() (id, path string, err error) {
	if id, err = c.sandbox(); err != nil {
		return "", "", err
	}
	path = c.r.URL.Query().Get("path")
	return id, path, c.checkQuery(&computev1.ReadFileRequest{SandboxId: id, Path: path})
}

// readFile answers a file, or a range of it, as bytes.
func (c *call) readFile() error {
	id, path, err := c.fileRequest()
	if err != nil {
		return err
	}
	a := content.Answer{
		Reply: c.Reply, W: c.w, R: c.r, Memory: c.memory, Sandbox: id, Path: path,
		Open: func(ctx context.Context, digest bool) (*usecase.Reading, error) {
			return c.use.OpenFile(ctx, c.p, id, path, digest)
		},
	}
	return a.Send(c.ctx)
}

// writeFile makes the body the content of a file, at once, whatever its size.
func (c *call) writeFile() error {
	body := content.NewBody(c.w, c.r, c.opt.BodyTime)
	err := c.putFile(body)
	body.Done(err)
	return err
}

func (c *call) putFile(body io.Reader) error {
	id, path, err := c.fileRequest()
	if err != nil {
		return err
	}
	bad := map[string]string{}
	digests := content.Digests(c.r.Header, bad)
	mode, modified := content.Kept(c.r.URL.Query(), nil, bad)
	if c.r.Header.Get("Content-Range") != "" || c.r.Header.Get("Content-Encoding") != "" {
		bad["content-range"] = "a file is written whole, as it is"
	}
	if err := invalid(bad); err != nil {
		return err
	}
	if most := c.use.MaxFile(); c.r.ContentLength > most {
		return edge.TooLarge(most)
	}
	if !c.memory.Take(2 * usecase.PartBytes) {
		return edge.Busy()
	}
	defer c.memory.Give(2 * usecase.PartBytes)
	w, err := c.use.PutFile(c.ctx, c.p, c.key, usecase.Upload{
		Sandbox: id, Path: path, Mode: mode, ModifiedAt: modified,
		Check: func(sum []byte, size int64) error {
			if name := content.Differs(digests, sum); name != "" {
				return fault.New(fault.InvalidArgument, fault.ReasonDigest, "the body is not the one that the digest is of; nothing was written").
					WithFields(map[string]string{name: fmt.Sprintf("of the %d bytes that came it is %s", size, content.DigestHeader(sum))})
			}
			return nil
		},
	}, body)
	if err != nil {
		return err
	}
	c.w.Header().Set("Repr-Digest", content.DigestHeader(w.SHA256))
	return c.answer(http.StatusOK, written{Success: true, Path: path, Size: w.Size, SHA256: hex.EncodeToString(w.SHA256)})
}
