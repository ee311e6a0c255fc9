package named

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
)

// Upload is a file that is sent.
type Upload struct {
	// Box and Path say where it goes. A path that is a directory there, or ends in a slash, gets it under Name.
	Box, Path, Name string
	// Mode are its permissions, Modified its time; zero: as they come.
	Mode     fs.FileMode
	Modified time.Time
	Data     io.Reader
}

// Upload sends a file without holding it, and gives what the server says of it.
func (c *Client) Upload(ctx context.Context, u Upload, out any) error {
	query := url.Values{"path": {u.Path}}
	if u.Mode != 0 {
		query.Set("mode", fmt.Sprintf("%04o", u.Mode.Perm()))
	}
	if !u.Modified.IsZero() {
		query.Set("modified", u.Modified.UTC().Format(time.RFC3339Nano))
	}
	reader, writer := io.Pipe()
	form := multipart.NewWriter(writer)
	return c.send(ctx, Request{
		Method: http.MethodPost, Path: Box(u.Box, "toolbox/files/upload"), Query: query, Media: form.FormDataContentType(),
	}, reader, writer, func() error {
		part, err := form.CreateFormFile("file", u.Name)
		if err == nil {
			_, err = io.Copy(part, u.Data)
		}
		return errors.Join(err, form.Close())
	}, out)
}

// UploadTree sends a tar archive, which write makes, to be unpacked into a directory, and gives what the server says of it.
func (c *Client) UploadTree(ctx context.Context, box, path string, write func(io.Writer) error, out any) error {
	reader, writer := io.Pipe()
	return c.send(ctx, Request{
		Method: http.MethodPost, Path: Box(box, "toolbox/files/upload-tar"), Query: url.Values{"path": {path}}, Media: "application/x-tar",
	}, reader, writer, func() error { return write(writer) }, out)
}

// send makes a call whose body is what write writes. Where that fails its error is the one to tell.
func (c *Client) send(ctx context.Context, r Request, reader *io.PipeReader, writer *io.PipeWriter, write func() error, out any) error {
	wrote := make(chan error, 1)
	go func() {
		err := write()
		writer.CloseWithError(err)
		wrote <- err
	}()
	r.Body = reader
	body, err := c.Raw(ctx, r)
	_ = reader.Close() // ends write where it is still at it
	if local := <-wrote; local != nil && !errors.Is(local, io.ErrClosedPipe) {
		return local
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, out)
}

const (
	// resumes is how often in a row a download that broke off is taken up again, resumeWait how long after.
	resumes, resumeWait = 5, time.Second
)

// Download is a file that is read.
type Download struct {
	c         *Client
	ctx       context.Context //nolint:containedctx // it lives as long as the one copy that it is of
	box, path string
	res       *http.Response
	at        int64
	tries     int
}

// Download opens a file. A connection that breaks is made again, and the file read on from there as long as it is the same version of it; the
// caller closes it.
func (c *Client) Download(ctx context.Context, box, path string) (*Download, error) {
	d := &Download{c: c, ctx: ctx, box: box, path: path}
	var err error
	d.res, err = c.Do(ctx, d.request()) //nolint:bodyclose // by Close
	return d, err
}

func (d *Download) request() Request {
	return Request{Method: http.MethodGet, Path: Box(d.box, "toolbox/files/download"), Query: url.Values{"path": {d.path}}}
}

// Size of the file, in bytes.
func (d *Download) Size() int64 { return d.res.ContentLength }

// Kept are the permissions and the time of the file, zero where the server does not say.
func (d *Download) Kept() (mode fs.FileMode, modified time.Time) {
	n, _ := strconv.ParseUint(d.res.Header.Get("X-File-Mode"), 8, 9)           // none is 0
	at, _ := time.Parse(time.RFC3339Nano, d.res.Header.Get("X-File-Modified")) // none is zero
	return fs.FileMode(n), at
}

// Read reads on.
func (d *Download) Read(p []byte) (int, error) {
	n, err := d.res.Body.Read(p)
	d.at += int64(n)
	if n > 0 {
		d.tries = 0
	}
	if err == nil || errors.Is(err, io.EOF) || d.ctx.Err() != nil {
		return n, err
	}
	for ; d.tries < resumes; d.tries++ {
		if pause.For(d.ctx, resumeWait) != nil || d.resume() == nil {
			return n, d.ctx.Err()
		}
	}
	return n, err
}

// resume goes on where the connection broke, if the file is still the same.
func (d *Download) resume() error {
	tag := d.res.Header.Get("ETag")
	if tag == "" || tag[0] != '"' {
		d.tries = resumes
		return errors.New("the server does not say which version the file is of")
	}
	r := d.request()
	r.Header = http.Header{"Range": {fmt.Sprintf("bytes=%d-", d.at)}, "If-Range": {tag}}
	res, err := d.c.Do(d.ctx, r)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusPartialContent {
		d.tries = resumes
		return errors.Join(fault.New(fault.Conflict, fault.ReasonConflict, "the file changed while it was read"), res.Body.Close())
	}
	_ = d.res.Body.Close() // it is broken
	header := d.res.Header
	d.res = res
	d.res.Header = header
	return nil
}

// Close ends it.
func (d *Download) Close() error { return d.res.Body.Close() }

// Tree opens a directory as a tar archive; the caller closes its body. skipped tells, once it was read to its end, how many entries it lacks.
func (c *Client) Tree(ctx context.Context, box, path string) (body io.ReadCloser, skipped func() int, err error) {
	res, err := c.Do(ctx, Request{ //nolint:bodyclose // the caller does
		Method: http.MethodGet, Path: Box(box, "toolbox/files/download"), Query: url.Values{"path": {path}, "format": {"tar"}},
	})
	if err != nil {
		return nil, nil, err
	}
	return res.Body, func() int {
		n, _ := strconv.Atoi(res.Trailer.Get("X-Skipped-Entries")) // none is 0
		return n
	}, nil
}
