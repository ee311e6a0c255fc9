package mcpapi

import (
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	utf8Text, base64Text = "utf-8", "base64"
	// maxContent is the most characters of a file that one call writes: what fits a message beside its JSON.
	maxContent = 1 << 20
	// defaultPage and maxPage are how much of a file or an output one call shows.
	defaultPage, maxPage = 32 << 10, 256 << 10
	// defaultEntries and maxEntries bound a listing.
	defaultEntries, maxEntries = 200, 1000
)

type readIn struct {
	SandboxID string `json:"sandbox_id" jsonschema:"id that create_sandbox gave"`
	Path      string `json:"path" jsonschema:"path in the workspace, relative or below /workspace"`
	Offset    int64  `json:"offset,omitempty" jsonschema:"first byte to read"`
	MaxBytes  int64  `json:"max_bytes,omitempty" jsonschema:"how much to read at most; 32 KiB unless set"`
}

type readOut struct {
	Content  string `json:"content"`
	Encoding string `json:"encoding" jsonschema:"utf-8, or base64 where the bytes are no text"`
	Size     int64  `json:"size" jsonschema:"bytes of the whole file"`
	Offset   int64  `json:"offset"`
	// NextOffset goes on behind what was read; nil at the end.
	NextOffset *int64 `json:"next_offset" jsonschema:"where to read on; null at the end"`
}

type writeIn struct {
	SandboxID      string `json:"sandbox_id" jsonschema:"id that create_sandbox gave"`
	Path           string `json:"path" jsonschema:"path in the workspace; directories are made"`
	Content        string `json:"content" jsonschema:"the whole new content, or what is appended"`
	Encoding       string `json:"encoding,omitempty" jsonschema:"how content is written here: utf-8 (default) or base64"`
	Append         bool   `json:"append,omitempty" jsonschema:"append instead of replacing"`
	Mode           string `json:"mode,omitempty" jsonschema:"permissions in octal such as 0755"`
	IdempotencyKey string `json:"idempotency_key,omitempty" jsonschema:"the same key with the same arguments writes once"`
}

type writeOut struct {
	Path   string `json:"path"`
	Size   int64  `json:"size" jsonschema:"bytes of the file now"`
	SHA256 string `json:"sha256" jsonschema:"of the bytes that were written, as they were found in the workspace"`
}

type listIn struct {
	SandboxID string `json:"sandbox_id" jsonschema:"id that create_sandbox gave"`
	Path      string `json:"path,omitempty" jsonschema:"directory in the workspace; the workspace itself unless set"`
	Recursive bool   `json:"recursive,omitempty" jsonschema:"also what is below"`
	Limit     uint32 `json:"limit,omitempty" jsonschema:"most entries; 200 unless set"`
}

type listOut struct {
	Entries   entries `json:"entries"`
	Truncated bool    `json:"truncated" jsonschema:"there are more: list a directory below, or with a higher limit"`
}

type entries []entry

type entry struct {
	Path       string     `json:"path"`
	Type       string     `json:"type" jsonschema:"file, directory or link"`
	Size       uint64     `json:"size"`
	Mode       string     `json:"mode"`
	ModifiedAt *time.Time `json:"modified_at"`
	LinkTarget string     `json:"link_target,omitempty"`
}

func fileTools(t *Tools) error {
	keyed := names{"data": "content", "idempotency-key": "idempotency_key"}
	err := add(t, &mcp.Tool{
		Name: "read_file", Annotations: reads("Read a file"),
		Description: "Read a file of the sandbox's workspace, 32 KiB at a time unless told otherwise. next_offset says where to go on.",
	}, nil, (*call).readFile)
	if err != nil {
		return err
	}
	err = add(t, &mcp.Tool{
		Name: "write_file", Annotations: changes("Write a file", true, true),
		Description: "Write a file of the sandbox's workspace. Readers see the old content or the new one, never half of it.",
	}, keyed, (*call).writeFile)
	if err != nil {
		return err
	}
	return add(t, &mcp.Tool{
		Name: "list_files", Annotations: reads("List files"), Description: "List a directory of the sandbox's workspace.",
	}, names{"max_entries": "limit"}, (*call).listFiles)
}

func (c *call) readFile(in readIn) (readOut, error) {
	limit := in.MaxBytes
	if limit == 0 {
		limit = defaultPage
	}
	res, err := try(c.ctx, unary(c.opt.API.ReadFile), &computev1.ReadFileRequest{
		SandboxId: in.SandboxID, Path: in.Path, Offset: in.Offset, MaxBytes: limit,
	})
	if err != nil {
		return readOut{}, err
	}
	data := res.GetData()
	if !res.GetEof() {
		data = data[:len(data)-cutRune(data)]
		if len(data) == 0 {
			data = res.GetData() // less than one character was asked for
		}
	}
	out := readOut{Size: res.GetTotalSize(), Offset: in.Offset}
	out.Content, out.Encoding = encoded(data)
	if next := in.Offset + int64(len(data)); !res.GetEof() {
		out.NextOffset = &next
	}
	return out, nil
}

func (c *call) writeFile(in writeIn) (writeOut, error) {
	req := &computev1.WriteFileRequest{SandboxId: in.SandboxID, Path: in.Path, Data: []byte(in.Content), Append: in.Append}
	if in.Encoding == base64Text {
		data, err := base64.StdEncoding.DecodeString(in.Content)
		if err != nil {
			return writeOut{}, invalid("the arguments are not valid").WithFields(map[string]string{"content": "must be base64"})
		}
		req.Data = data
	}
	if in.Mode != "" {
		mode, err := strconv.ParseUint(in.Mode, 8, 9)
		if err != nil {
			return writeOut{}, invalid("the arguments are not valid").WithFields(map[string]string{"mode": "must be octal such as 0755"})
		}
		req.Mode = uint32(mode)
	}
	res, err := try(c.keyed(in.IdempotencyKey), unary(c.opt.API.WriteFile), req)
	if err != nil {
		return writeOut{}, err
	}
	return writeOut{Path: in.Path, Size: res.GetSize(), SHA256: hex.EncodeToString(res.GetSha256())}, nil
}

func (c *call) listFiles(in listIn) (listOut, error) {
	limit := in.Limit
	if limit == 0 {
		limit = defaultEntries
	}
	res, err := try(c.ctx, unary(c.opt.API.ListFiles), &computev1.ListFilesRequest{
		SandboxId: in.SandboxID, Path: in.Path, Recursive: in.Recursive, MaxEntries: limit,
	})
	if err != nil {
		return listOut{}, err
	}
	out := listOut{Entries: entries{}, Truncated: res.GetTruncated()}
	for _, f := range res.GetEntries() {
		e := entry{Path: f.GetPath(), Type: "file", Size: f.GetSize(), Mode: "0" + strconv.FormatUint(uint64(f.GetMode()), 8), LinkTarget: f.GetLinkTarget()}
		switch {
		case f.GetIsDir():
			e.Type = "directory"
		case f.GetLinkTarget() != "":
			e.Type = "link"
		}
		if f.GetModifiedAt() != nil {
			e.ModifiedAt = pointer(f.GetModifiedAt().AsTime())
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// lost is the fault of an exec whose outcome is not known.
func lost(err error) bool {
	f := fault.FromStatus(err)
	return f != nil && f.Code == fault.Lost
}
