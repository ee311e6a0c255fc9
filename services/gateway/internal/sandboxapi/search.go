package sandboxapi

import (
	"bytes"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sandtrail/sandtrail/libs/fault"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
)

const (
	// maxPattern bounds a pattern, in bytes; maxLooked how many files are looked at for one.
	maxPattern, maxLooked = 1024, 10_000
	// maxMatches bounds the lines that are found.
	maxMatches = 1000
)

func (c *call) pattern() (string, error) {
	p := c.r.URL.Query().Get("pattern")
	if p == "" || len(p) > maxPattern || strings.ContainsAny(p, "\x00\n") {
		return "", field("pattern", "must be 1 to 1,024 bytes, without a newline")
	}
	return p, nil
}

// searchFiles finds files by a glob below a directory of the workspace: * and ? stay within one level, ** is any number of levels.
func (c *call) searchFiles() error {
	p, err := c.place()
	if err != nil {
		return err
	}
	pattern, err := c.pattern()
	if err != nil {
		return err
	}
	levels := strings.Split(strings.Trim(path.Clean("/"+pattern), "/"), "/")
	for _, l := range levels {
		if _, err := path.Match(l, ""); err != nil {
			return field("pattern", "is not a glob")
		}
	}
	dir := p.abs(c.r.URL.Query().Get("path"))
	if under, ok := strings.CutPrefix(path.Clean(pattern), p.root+"/"); ok { // a whole path is meant
		dir, levels = p.root, strings.Split(under, "/")
	}
	found, truncated, err := c.use.ListFiles(c.ctx, c.p, p.id, dir, true, maxLooked)
	if err != nil {
		return err
	}
	files := []string{}
	for _, f := range found {
		at := p.abs(f.GetPath())
		if under, ok := strings.CutPrefix(at, strings.TrimSuffix(dir, "/")+"/"); ok && matches(levels, strings.Split(under, "/")) {
			files = append(files, at)
		}
	}
	slices.Sort(files)
	return c.answer(http.StatusOK, map[string]any{"files": files, "truncated": truncated})
}

// matches reports whether the levels of a path are those of a pattern. Its cost is at most that of comparing each level with each.
func matches(pattern, levels []string) bool {
	// reach[i]: the pattern from here on fits the levels from i on.
	reach := make([]bool, len(levels)+1)
	reach[len(levels)] = true
	for p := len(pattern) - 1; p >= 0; p-- {
		next := make([]bool, len(levels)+1)
		if pattern[p] == "**" {
			for i, some := len(levels), false; i >= 0; i-- {
				some = some || reach[i]
				next[i] = some
			}
		} else {
			for i, l := range levels {
				fits, err := path.Match(pattern[p], l)
				next[i] = err == nil && fits && reach[i+1]
			}
		}
		reach = next
	}
	return reach[0]
}

// match is a line that holds what was looked for.
type match struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Content string `json:"content"`
}

// findInFiles finds the lines of text files that hold a text, literally. It looks for at most 30 s; what is found until an answer is full
// is answered.
func (c *call) findInFiles() error {
	p, err := c.place()
	if err != nil {
		return err
	}
	pattern, err := c.pattern()
	if err != nil {
		return err
	}
	const script = `[ -e "$2" ] || exit 44
grep -rnIFZ -- "$1" "$2" | head -c 1000000
exit 0`
	said, err := c.script(p.id, script, pattern, p.abs(c.r.URL.Query().Get("path")))
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, lines(said))
}

// lines reads what grep -nZ prints: a file's name, a zero byte, the number of a line, a colon, and the line.
func lines(said []byte) []match {
	all := []match{}
	for l := range bytes.SplitSeq(said, []byte("\n")) {
		file, rest, ok := bytes.Cut(l, []byte{0})
		number, content, named := bytes.Cut(rest, []byte(":"))
		n, err := strconv.Atoi(string(number))
		if !ok || !named || err != nil {
			continue // the last line, where the answer was full
		}
		all = append(all, match{File: text(file), Line: n, Content: text(content)})
		if len(all) == maxMatches {
			break
		}
	}
	return all
}

// replacement is the body of a replace.
type replacement struct {
	Files    []string `json:"files"`
	Pattern  string   `json:"pattern"`
	NewValue string   `json:"newValue"`
}

type replaced struct {
	File         string `json:"file"`
	Success      bool   `json:"success"`
	Replacements int    `json:"replacements"`
	Error        string `json:"error,omitempty"`
}

// maxReplace is the most bytes of a file in which a text is replaced.
const maxReplace = 16 << 20

// replaceInFiles puts one text in the place of another, literally, in each of the files. One that fails does not keep the others.
func (c *call) replaceInFiles() error {
	p, err := c.place()
	if err != nil {
		return err
	}
	var b replacement
	if err := c.object(&b); err != nil {
		return err
	}
	bad := map[string]string{}
	if len(b.Files) == 0 || len(b.Files) > maxFiles {
		bad["files"] = "must be 1 to 100 paths"
	}
	if b.Pattern == "" || len(b.Pattern) > maxBody/4 {
		bad["pattern"] = "must not be empty"
	}
	if err := invalid(bad); err != nil {
		return err
	}
	all := []replaced{}
	for _, name := range b.Files {
		n, err := c.replace(p, name, b)
		r := replaced{File: p.abs(name), Success: err == nil, Replacements: n}
		if err != nil {
			if c.ctx.Err() != nil || len(b.Files) == 1 {
				return err
			}
			r.Error = fault.From(err).Message
		}
		all = append(all, r)
	}
	return c.answer(http.StatusOK, all)
}

func (c *call) replace(p place, name string, b replacement) (int, error) {
	if !c.memory.Take(2 * maxReplace) {
		return 0, edge.Busy()
	}
	defer c.memory.Give(2 * maxReplace)
	data, size, eof, err := c.use.ReadFile(c.ctx, c.p, p.id, p.abs(name), 0, maxReplace)
	if err != nil {
		return 0, err
	}
	n := bytes.Count(data, []byte(b.Pattern))
	grown := len(data) + n*(len(b.NewValue)-len(b.Pattern))
	if !eof || grown > maxReplace {
		return 0, fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "a file of %d bytes is too large for this; at most %d", max(int(size), grown), maxReplace)
	}
	if n == 0 {
		return 0, nil
	}
	data = bytes.ReplaceAll(data, []byte(b.Pattern), []byte(b.NewValue))
	_, err = c.use.WriteFile(c.ctx, c.p, "", &computev1.WriteFileRequest{SandboxId: p.id, Path: p.abs(name), Data: data})
	return n, err
}
