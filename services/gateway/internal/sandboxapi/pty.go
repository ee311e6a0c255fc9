package sandboxapi

import (
	"encoding/base64"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/ids"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// maxSide bounds a terminal's columns and rows; its size where the client does not say one is 80 by 24.
	maxSide = 1000
	// recentBytes of output are shown to who comes back without saying up to where it has it.
	recentBytes = 256 << 10
)

// login is the shell of a terminal: bash where the image has it.
var login = []string{"-c", "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l"}

var termName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)

// terminalRequest is what the query of a terminal asks for.
type terminalRequest struct {
	size *commonv1.TerminalSize
	// sized: the client said its size.
	sized bool
	term  string
	// exec is that of a terminal to come back to, and after the last chunk of it that the client has; without known it has none.
	exec   string
	after  uint64
	known  bool
	detach bool
}

// pty opens a terminal in the sandbox, or comes back to one.
func (c *call) pty() error {
	if err := c.upgradable(); err != nil {
		return err
	}
	ask, err := terminalAsked(c.r.URL.Query())
	if err != nil {
		return err
	}
	box, err := c.box()
	if err != nil {
		return err
	}
	t := newTerminal(c, box, ask)
	if ask.exec == "" {
		req, err := c.shell(box, ask)
		if err != nil {
			return err
		}
		_, err = c.use.Exec(t.ctx, c.p, "", req, t)
		return t.finish(err)
	}
	x, err := c.use.OnTerminal(c.ctx, c.p, box, ask.exec)
	if err != nil {
		return t.finish(err)
	}
	if !ask.known {
		if ask.after, err = c.use.Recent(c.ctx, x, recentBytes); err != nil {
			return t.finish(err)
		}
		t.midway = ask.after > 0
	}
	_, err = c.use.Attach(t.ctx, c.p, box, ask.exec, ask.after, t)
	return t.finish(err)
}

// shell is the command of a new terminal.
func (c *call) shell(box string, ask terminalRequest) (*computev1.ExecCommandRequest, error) {
	req := &computev1.ExecCommandRequest{
		SandboxId: box, Command: "sh", Args: login, Env: map[string]string{"TERM": ask.term}, Timeout: durationpb.New(c.use.LongestExec()),
		// Behind the limit nothing would be shown any more: it ends there, and says why.
		StopAtOutputLimit: true, Detach: ask.detach, KeepStdin: true, Terminal: ask.size,
	}
	broken, err := c.Violations(req)
	if err != nil {
		return nil, err
	}
	return req, invalid(broken)
}

// upgradable refuses what is no WebSocket, and pages of other sites.
func (c *call) upgradable() error {
	h := c.r.Header
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(h.Get("Sec-Websocket-Key")))
	if c.r.ProtoMajor != 1 || !strings.EqualFold(h.Get("Upgrade"), "websocket") || !strings.Contains(strings.ToLower(h.Get("Connection")), "upgrade") ||
		h.Get("Sec-Websocket-Version") != "13" || err != nil || len(key) != 16 || len(h["Sec-Websocket-Key"]) != 1 {
		return field("Upgrade", "must open a WebSocket of version 13 over HTTP/1.1: this route is one")
	}
	return c.ownOrigin("a terminal is not opened for a page of another site")
}

// terminalAsked reads the query; width and height are other names of cols and rows.
func terminalAsked(q url.Values) (terminalRequest, error) {
	bad := map[string]string{}
	ask := terminalRequest{size: &commonv1.TerminalSize{Columns: 80, Rows: 24}, term: orElse(q.Get("term"), "xterm-256color"), exec: q.Get("execution")}
	for side, names := range map[*uint32][]string{&ask.size.Columns: {"cols", "width"}, &ask.size.Rows: {"rows", "height"}} {
		for _, name := range names {
			if !q.Has(name) {
				continue
			}
			n, err := strconv.ParseUint(q.Get(name), 10, 32)
			if err != nil || n < 1 || n > maxSide {
				bad[name] = "must be 1 to " + strconv.Itoa(maxSide)
				continue
			}
			*side, ask.sized = uint32(n), true
		}
	}
	if !termName.MatchString(ask.term) {
		bad["term"] = "must be the name of a kind of terminal, such as xterm-256color"
	}
	if ask.exec != "" && !ids.Valid(ask.exec) {
		bad["execution"] = "must be the id of an execution"
	}
	if q.Has("after") {
		var err error
		if ask.after, err = strconv.ParseUint(q.Get("after"), 10, 63); err != nil || ask.exec == "" {
			bad["after"] = "must be the number of the last chunk that you have of the execution"
		}
		ask.known = true
	}
	switch q.Get("detach") {
	case "", "false":
	case "true":
		ask.detach = true
	default:
		bad["detach"] = "must be true or false"
	}
	return ask, invalid(bad)
}

// The Telnet option of window sizes, and the form of it that the published server looks for: behind each stand columns and rows as two
// bytes. Neither is text, so nobody can type it.
var (
	telnetSize    = []byte{0xff, 0xfa, 0x1f}
	publishedSize = []byte{0xff, 0xfd, 0x1c}
)

// sizeMessage reads a binary message that is a size and nothing else. nil with true: it is one that no terminal may have.
func sizeMessage(data []byte) (*commonv1.TerminalSize, bool) {
	head := string(data[:min(3, len(data))])
	switch {
	case head == string(telnetSize) && len(data) == 9 && data[7] == 0xff && data[8] == 0xf0:
	case head == string(publishedSize) && len(data) >= 7 && len(data) <= 9:
	default:
		return nil, false
	}
	size := &commonv1.TerminalSize{Columns: uint32(data[3])<<8 | uint32(data[4]), Rows: uint32(data[5])<<8 | uint32(data[6])}
	if !sizeFits(size) {
		return nil, true
	}
	return size, true
}

func sizeFits(s *commonv1.TerminalSize) bool {
	return s.GetColumns() >= 1 && s.GetColumns() <= maxSide && s.GetRows() >= 1 && s.GetRows() <= maxSide
}
