package app_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
	"github.com/sandtrail/sandtrail/toolbox/files"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// disk puts a real workspace behind the peer and gives its directory.
func (p *peer) disk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	f, err := files.Open(files.Options{Dir: dir, MountPath: "/workspace"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	p.set(func() {
		p.answers = func(c *commandsv1.FileCall) *commandsv1.FileReply {
			reply, err := onDisk(f, c)
			var refused *wire.Error
			if err != nil {
				if errors.As(err, &refused) {
					err = fault.New(fault.Code(refused.Code), fault.Reason(refused.Reason), refused.Message)
				}
				reply = &commandsv1.FileReply{}
				reply.Error, _ = fault.Detail(err)
			}
			return reply
		}
	})
	return dir
}

// onDisk is a call as the exec service passes it on.
func onDisk(f *files.Files, c *commandsv1.FileCall) (*commandsv1.FileReply, error) {
	switch call := c.GetCall().(type) {
	case *commandsv1.FileCall_Write:
		w := call.Write
		r, err := f.Write(&toolboxv1.WriteFile{
			Path: w.GetPath(), UploadId: w.GetUploadId(), Offset: w.GetOffset(), Data: w.GetData(), Last: w.GetLast(), Mode: w.GetMode(),
			Abort: w.GetAbort(), FinishId: w.GetFinishId(), ModifiedAt: w.GetModifiedAt(),
		})
		return &commandsv1.FileReply{BytesWritten: r.GetBytesWritten(), Size: r.GetSize(), Sha256: r.GetSha256()}, err
	case *commandsv1.FileCall_Read:
		r, err := f.Read(&toolboxv1.ReadFile{Path: call.Read.GetPath(), Offset: call.Read.GetOffset(), MaxBytes: call.Read.GetMaxBytes()})
		return &commandsv1.FileReply{Data: r.GetData(), TotalSize: r.GetTotalSize(), Eof: r.GetEof(), Version: r.GetVersion()}, err
	case *commandsv1.FileCall_Stat:
		r, err := f.Stat(&toolboxv1.StatFile{Path: call.Stat.GetPath(), Digest: call.Stat.GetDigest()})
		return &commandsv1.FileReply{
			TotalSize: r.GetSize(), Version: r.GetVersion(), Mode: r.GetMode(), ModifiedAt: r.GetModifiedAt(), Sha256: r.GetSha256(),
		}, err
	case *commandsv1.FileCall_List:
		r, err := f.List(&toolboxv1.ListFiles{Path: call.List.GetPath(), MaxEntries: call.List.GetMaxEntries(), After: call.List.GetAfter()})
		reply := &commandsv1.FileReply{Next: r.GetNext(), Truncated: r.GetTruncated()}
		for _, e := range r.GetEntries() {
			reply.Entries = append(reply.Entries, &commandsv1.FileInfo{
				Path: e.GetPath(), Size: e.GetSize(), IsDir: e.GetIsDir(), Mode: e.GetMode(), ModifiedAt: e.GetModifiedAt(), LinkTarget: e.GetLinkTarget(),
			})
		}
		return reply, err
	case *commandsv1.FileCall_Make:
		m := call.Make
		_, err := f.Make(&toolboxv1.MakeEntry{
			Path: m.GetPath(), Symlink: m.GetSymlink(), Hardlink: m.GetHardlink(), Mode: m.GetMode(), ModifiedAt: m.GetModifiedAt(),
		})
		return &commandsv1.FileReply{}, err
	}
	return &commandsv1.FileReply{}, nil
}

// left are the names in a workspace, hidden ones too.
func left(t *testing.T, dir string) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		if name != dir {
			rel, _ := filepath.Rel(dir, name)
			names = append(names, rel)
		}
		return err
	}))
	return names
}

// pack makes an archive; a directory's name ends in a slash, and what is behind an arrow is a link's target.
func pack(t *testing.T, entries ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		data := h.Uname // content of a file, for want of another place
		h.Uname = ""
		h.Size = int64(len(data))
		require.NoError(t, w.WriteHeader(h))
		_, err := io.WriteString(w, data)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

var then = time.Date(2001, 2, 3, 4, 5, 6, 500, time.UTC)

func entry(kind byte, name, more string, mode int64) *tar.Header {
	h := &tar.Header{Typeflag: kind, Name: name, Mode: mode, ModTime: then, Format: tar.FormatPAX}
	if kind == tar.TypeReg {
		h.Uname = more
	} else {
		h.Linkname = more
	}
	return h
}

const treeRoute = "/sandboxes/demo/toolbox/files/upload-tar"

// What is packed, sent, unpacked, packed and read again is what it was.
func TestArchivesKeepWhatTheyHold(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	dir := w.peer.disk(t)
	big := strings.Repeat("0123456789abcdef", 100_001)
	sent := pack(
		t,
		entry(tar.TypeDir, "./", "", 0o700),
		entry(tar.TypeDir, "d/", "", 0o550),
		entry(tar.TypeReg, "d/run", "#!/bin/sh\n", 0o751),
		entry(tar.TypeReg, "d/big", big, 0o600),
		entry(tar.TypeReg, "d/empty", "", 0o644),
		entry(tar.TypeReg, "deep/er/\u00e9 name", "x", 0o644),
		entry(tar.TypeSymlink, "d/link", "../deep/er", 0o777),
		entry(tar.TypeLink, "hard", "d/run", 0),
	)
	got := w.send("POST", treeRoute+"?path=t", bytes.NewReader(sent), "Content-Type: application/x-tar").is(t, 200)
	require.Equal(t, []any{json.Number("4"), json.Number("2"), json.Number("2"), json.Number("0"), "/workspace/t"},
		[]any{got["files"], got["directories"], got["links"], got["skipped_count"], got["path"]})
	require.Equal(t, json.Number(fmt.Sprint(len(big)+11)), got["bytes"])
	for name, mode := range map[string]os.FileMode{"t/d": os.ModeDir | 0o550, "t/d/run": 0o751, "t/d/big": 0o600, "t": os.ModeDir | 0o700} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), name)
		require.True(t, info.ModTime().Equal(then), "%s: %s", name, info.ModTime())
	}
	back := w.send("GET", "/sandboxes/demo/toolbox/files/download?path=t&format=tar", nil)
	require.Equal(t, 200, back.status)
	require.Equal(t, "application/x-tar", back.header.Get("Content-Type"))
	var names []string
	r := tar.NewReader(bytes.NewReader(back.body))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		names = append(names, fmt.Sprintf("%s %o %s", h.Name, h.Mode, h.Linkname))
		if h.Name == "d/big" {
			data, err := io.ReadAll(r)
			require.NoError(t, err)
			require.Equal(t, big, string(data))
			require.True(t, h.ModTime.Equal(then))
		}
	}
	require.Equal(t, []string{
		"d/ 550 ", "d/big 600 ", "d/empty 644 ", "d/link 777 ../deep/er", "d/run 751 ", "deep/ 755 ", "deep/er/ 755 ", "deep/er/\u00e9 name 644 ", "hard 751 ",
	}, names)
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "t/fifo"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "t/\xff"), nil, 0o600))
	res, err := http.Get(w.base + "/api/v1/sandboxes/demo/toolbox/files/download?path=t&format=tar")
	require.NoError(t, err)
	defer res.Body.Close()
	again, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, back.body, again)
	require.Equal(t, "2", res.Trailer.Get("X-Skipped-Entries"))
	require.NoError(t, os.Chmod(filepath.Join(dir, "t/d"), 0o755)) //nolint:gosec // for the test to clean up

	w.send("GET", "/sandboxes/demo/toolbox/files/download?path=none&format=tar", nil).refused(t, 404, "path_not_found")
	w.send("GET", "/sandboxes/demo/toolbox/files/download?path=t&format=zip", nil).refused(t, 422, "validation")
	w.send("GET", "/sandboxes/demo/toolbox/files/download?path=t", nil).refused(t, 409, "path_not_file")
}

// Hostile archives reach nothing outside of their directory, and leave nothing of what they were refused for.
func TestHostileArchives(t *testing.T) {
	w := newBoxes(t, nil, func(c *app.Config) { c.MaxFileBytes = 4 << 20 })
	w.made("demo")
	dir := w.peer.disk(t)
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "t"), 0o755))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "t", "there")))
	send := func(path string, body []byte) answer {
		return w.send("POST", treeRoute+"?path="+path, bytes.NewReader(body), "Content-Type: application/x-tar")
	}
	for name, c := range map[string]struct {
		h      *tar.Header
		status int
		reason string
	}{
		"above":            {entry(tar.TypeReg, "../x", "x", 0o644), 403, "path_escapes"},
		"absolute":         {entry(tar.TypeReg, "/etc/x", "x", 0o644), 403, "path_escapes"},
		"in the middle":    {entry(tar.TypeReg, "a/../../x", "x", 0o644), 403, "path_escapes"},
		"directory":        {entry(tar.TypeDir, "../x/", "", 0o755), 403, "path_escapes"},
		"hard link":        {entry(tar.TypeLink, "x", "../x", 0), 403, "path_escapes"},
		"through a link":   {entry(tar.TypeReg, "there/x", "x", 0o644), 403, "path_escapes"},
		"over a directory": {entry(tar.TypeReg, "sub", "x", 0o644), 409, "path_not_file"},
		"too large":        {entry(tar.TypeReg, "x", strings.Repeat("x", 5<<20), 0o644), 413, "too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "t", "sub"), 0o755))
			send("t", pack(t, c.h)).refused(t, c.status, c.reason)
			require.ElementsMatch(t, []string{"t", "t/sub", "t/there"}, left(t, dir))
		})
	}
	for name, body := range map[string][]byte{
		"nothing":    nil,
		"no archive": bytes.Repeat([]byte("x"), 2000),
		"no end":     pack(t, entry(tar.TypeReg, "cut/f", "x", 0o644))[:2048],
		"cut":        pack(t, entry(tar.TypeReg, "cut/g", strings.Repeat("x", 1_000_000), 0o644))[:700_000],
	} {
		t.Run(name, func(t *testing.T) { send("t", body).refused(t, 400, "malformed_request") })
	}
	require.NoFileExists(t, filepath.Join(dir, "t/cut/g"), "a file whose end did not come")

	got := send("safe", pack(
		t,
		entry(tar.TypeSymlink, "out", "/etc", 0o777),
		entry(tar.TypeSymlink, "up", "..", 0o777),
		entry(tar.TypeSymlink, "d/up", "../../t", 0o777),
		entry(tar.TypeSymlink, "in", "d", 0o777),
		entry(tar.TypeReg, "in/f", "not through the link before it", 0o644),
		entry(tar.TypeReg, "up/f", "nor this", 0o644),
		entry(tar.TypeChar, "null", "", 0o666),
		entry(tar.TypeFifo, "fifo", "", 0o666),
		entry(tar.TypeLink, "gone", "none", 0),
	)).is(t, 200)
	require.Equal(t, json.Number("7"), got["skipped_count"], "%v", got["skipped"])
	require.Equal(t, json.Number("2"), got["files"])
	require.ElementsMatch(t, []string{"safe", "safe/in", "safe/in/f", "safe/up", "safe/up/f"}, left(t, dir)[:5])
	found, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, found, 1)
}

// A body that is cut, wherever that is, leaves nothing of its file.
func TestCutUploadsLeaveNothing(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	dir := w.peer.disk(t)
	var form bytes.Buffer
	m := multipart.NewWriter(&form)
	part, err := m.CreateFormFile("file", "f")
	require.NoError(t, err)
	_, err = part.Write(bytes.Repeat([]byte("data"), 500_000))
	require.NoError(t, err)
	require.NoError(t, m.Close())
	archive := pack(t, entry(tar.TypeReg, "f", strings.Repeat("data", 500_000), 0o644))
	for name, c := range map[string]struct {
		route, media string
		body         []byte
	}{
		"form":    {"upload?path=f", m.FormDataContentType(), form.Bytes()},
		"bulk":    {"bulk-upload?path=", m.FormDataContentType(), form.Bytes()},
		"archive": {"upload-tar?path=", "application/x-tar", archive},
	} {
		t.Run(name, func(t *testing.T) {
			for range 12 {
				at := rand.IntN(len(c.body) - 2000)
				chunked := rand.IntN(2) == 0
				conn, err := net.Dial("tcp", w.app.HTTP())
				require.NoError(t, err)
				fmt.Fprintf(conn, "POST /api/v1/sandboxes/demo/toolbox/files/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n", c.route, c.media)
				if chunked {
					fmt.Fprintf(conn, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", at, c.body[:at])
				} else {
					fmt.Fprintf(conn, "Content-Length: %d\r\n\r\n%s", len(c.body), c.body[:at])
				}
				require.NoError(t, conn.(*net.TCPConn).CloseWrite())
				got, err := io.ReadAll(conn)
				require.NoError(t, err)
				require.NoError(t, conn.Close())
				require.True(t, strings.HasPrefix(string(got), "HTTP/1.1 400 "), "cut at %d: %s", at, got)
				require.Empty(t, left(t, dir), "cut at %d", at)
			}
		})
	}
	body := form.Bytes()[:form.Len()-6] // without the last boundary, and yet at its end
	w.send("POST", "/sandboxes/demo/toolbox/files/upload?path=f", bytes.NewReader(body), "Content-Type: "+m.FormDataContentType()).refused(t, 400, "malformed_request")
	require.Empty(t, left(t, dir))
}

// A form keeps permissions and times, is bounded by the gateway's limit alone, and a download says what was kept and takes ranges.
func TestUploadsOfNamedSandboxesKeepModeAndTime(t *testing.T) {
	w := newBoxes(t, nil, func(c *app.Config) { c.MaxFileBytes = 20 << 20 })
	w.made("demo")
	dir := w.peer.disk(t)
	put := func(query string, size int, headers map[string][]string) answer {
		var b bytes.Buffer
		m := multipart.NewWriter(&b)
		h := map[string][]string{"Content-Disposition": {`form-data; name="file"; filename="f"`}}
		for name, v := range headers {
			h[name] = v
		}
		part, err := m.CreatePart(h)
		require.NoError(t, err)
		_, err = part.Write(bytes.Repeat([]byte("x"), size))
		require.NoError(t, err)
		require.NoError(t, m.Close())
		return w.send("POST", "/sandboxes/demo/toolbox/files/upload?path=f"+query, &b, "Content-Type: "+m.FormDataContentType())
	}
	up := put("&mode=0750&modified=981173106.25", 17<<20, nil).is(t, 200)
	sum := sha256.Sum256(bytes.Repeat([]byte("x"), 17<<20))
	require.Equal(t, hex.EncodeToString(sum[:]), up["sha256"], "over 16 MiB")
	got := w.send("GET", "/sandboxes/demo/toolbox/files/download?path=f", nil, "Range: bytes=1-3")
	require.Equal(t, 206, got.status)
	require.Equal(t, "xxx", string(got.body))
	require.Equal(t, []string{"0750", "2001-02-03T04:05:06.25Z"}, []string{got.header.Get("X-File-Mode"), got.header.Get("X-File-Modified")})
	put("&mode=0750", 1, map[string][]string{"X-File-Mode": {"0600"}, "X-File-Modified": {"2001-02-03T04:05:06Z"}}).is(t, 200)
	info, err := os.Stat(filepath.Join(dir, "f"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.True(t, info.ModTime().Equal(then.Truncate(time.Second)))
	put("&mode=9", 1, nil).refused(t, 422, "validation")
	put("&modified=yesterday", 1, nil).refused(t, 422, "validation")
	put("", 21<<20, nil).refused(t, 413, "too_large")
	require.Equal(t, []string{"f"}, left(t, dir))
	info, err = os.Stat(filepath.Join(dir, "f"))
	require.NoError(t, err)
	require.EqualValues(t, 1, info.Size(), "what is too large changes nothing")
}

// The gateway holds parts, not files and not forms: 256 MiB go through it and back.
func TestLargeFilesOfNamedSandboxesInFlatMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: moves 512 MiB")
	}
	if !alone(t) {
		return
	}
	w := newBoxes(t, nil)
	w.made("demo")
	const size = 256 << 20
	w.peer.blackHole(size)
	before, peak := heap(), &heapPeak{}
	reader, writer := io.Pipe()
	form := multipart.NewWriter(writer)
	go func() {
		part, err := form.CreateFormFile("file", "big")
		if err == nil {
			_, err = io.CopyN(io.MultiWriter(part, peak), zeros{}, size)
		}
		writer.CloseWithError(errors.Join(err, form.Close()))
	}()
	at := w.base + "/api/v1/sandboxes/demo/toolbox/files/"
	res, err := http.Post(at+"upload?path=big", form.FormDataContentType(), reader)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, 200, res.StatusCode)
	res, err = http.Get(at + "download?path=big")
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, 200, res.StatusCode)
	got, err := io.Copy(peak, res.Body)
	require.NoError(t, err)
	require.EqualValues(t, size, got)
	peak.below(t, before, size/4)
}

// A form may take any time as long as it comes on; one that comes byte by byte is ended.
func TestFormsThatComeSlowly(t *testing.T) {
	const patience = 500 * time.Millisecond
	w := newBoxes(t, nil, func(c *app.Config) { c.BodyTime = patience })
	w.made("demo")
	dir := w.peer.disk(t)
	const head = "POST /api/v1/sandboxes/demo/toolbox/files/upload?path=f HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
	const part = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n"
	for name, sent := range map[string]string{"content": part, "head of a part": "--b\r\nX-Slow: ", "nothing": ""} {
		got := drip(t, w.app.HTTP(), head+"Content-Length: 100000\r\n\r\n"+sent, 'x')
		require.True(t, strings.HasPrefix(got, "HTTP/1.1 400 "), "%s: %s", name, got)
		require.Empty(t, left(t, dir), name)
	}
	reader, writer := io.Pipe()
	go func() {
		tick := time.NewTicker(patience / 5)
		defer tick.Stop()
		_, err := io.WriteString(writer, part)
		for range 15 { // three times as long as it may be silent
			<-tick.C
			if err == nil {
				_, err = io.CopyN(writer, zeros{}, 128<<10)
			}
		}
		if err == nil {
			_, err = io.WriteString(writer, "\r\n--b--\r\n")
		}
		writer.CloseWithError(err)
	}()
	res, err := http.Post(w.base+"/api/v1/sandboxes/demo/toolbox/files/upload?path=f", "multipart/form-data; boundary=b", reader)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, 200, res.StatusCode)
	info, err := os.Stat(filepath.Join(dir, "f"))
	require.NoError(t, err)
	require.EqualValues(t, 15*128<<10, info.Size())
}

// An upload is not lost to a worker that is busy, or away for a moment; a disk that is full ends it.
func TestUploadsAreSentAgain(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	dir := w.peer.disk(t)
	var parts, lasts atomic.Int32
	put := func() answer {
		body := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n" + strings.Repeat("x", 1_200_000) + "\r\n--b--\r\n"
		return w.send("POST", "/sandboxes/demo/toolbox/files/upload?path=f", strings.NewReader(body), "Content-Type: multipart/form-data; boundary=b")
	}
	w.peer.set(func() {
		w.peer.onPart = func(p *commandsv1.WritePart) error {
			switch {
			case p.GetLast() && lasts.Add(1) == 1:
				return fault.New(fault.Unavailable, fault.ReasonConflict, "another large file is at work; try again")
			case !p.GetLast() && !p.GetAbort() && parts.Add(1) == 2:
				return fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the sandbox does not answer")
			}
			return nil
		}
	})
	require.Equal(t, json.Number("1200000"), put().is(t, 200)["size"])
	require.EqualValues(t, 2, lasts.Load())
	require.EqualValues(t, 3, parts.Load())
	w.peer.set(func() {
		w.peer.onPart = func(p *commandsv1.WritePart) error {
			if p.GetOffset() == 0 {
				return nil
			}
			return fault.New(fault.ResourceExhausted, fault.ReasonDiskFull, "the workspace is full")
		}
	})
	put().refused(t, 507, "disk_full")
	require.Equal(t, []string{"f"}, left(t, dir), "the file before it")
}
