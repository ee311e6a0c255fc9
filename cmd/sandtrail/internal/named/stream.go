package named

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
)

// Command is what is run in a sandbox.
type Command struct {
	Language string  `json:"language"`
	Code     string  `json:"code"`
	Timeout  float64 `json:"timeout,omitempty"`
	Stdin    []byte  `json:"stdin_base64,omitempty"`
	// Detach and KeepStdin are for Begin.
	Detach    bool `json:"detach,omitempty"`
	KeepStdin bool `json:"keep_stdin,omitempty"`
}

// maxEvent bounds a line of a stream of events.
const maxEvent = 8 << 20

// Run runs a command, writes its output as it comes, byte for byte, and gives its exit code. warn is told of output that was dropped.
// fault.Lost: the command was accepted and how it ended is not known.
func (c *Client) Run(ctx context.Context, box string, cmd Command, stdout, stderr io.Writer, warn func(string)) (int, error) {
	body, err := json.Marshal(cmd)
	if err != nil {
		return 0, err
	}
	res, err := c.Do(ctx, Request{
		Method: http.MethodPost, Path: "/api/v1/sandboxes/stream", Query: url.Values{"sandbox": {box}, "framing": {"base64"}},
		Body: bytes.NewReader(body), Accept: "text/event-stream",
	})
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	f := follower{stdout: stdout, stderr: stderr, warn: warn}
	switch exit, ended, err := f.read(res); {
	case err != nil:
		return 0, err
	case ended:
		return exit, nil
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case f.said != "":
		return 0, lost(res, f.said)
	}
	return 0, lost(res, "the connection broke before its end")
}

// follower writes the output that the events of an exec tell of.
type follower struct {
	stdout, stderr io.Writer
	warn           func(string)
	// after is the last id that came, 0 without one; said the last error, which is the end where nothing comes behind it; broken: the
	// stream did not come to its end.
	after  uint64
	said   string
	broken bool
}

// read takes events until the exec's end, which it returns, or the stream's. What came of an event that is not whole is left out.
func (f *follower) read(res *http.Response) (exit int, ended bool, err error) {
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	var event, data string
	id := f.after
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "event":
			event = value
		case "data":
			data = value
		case "id":
			if n, err := strconv.ParseUint(value, 10, 64); err == nil {
				id = n
			}
		}
		if lines.Text() != "" || event == "" {
			continue
		}
		if event == "exit" {
			if exit, err = strconv.Atoi(data); err != nil {
				return 0, false, lost(res, "the server's last word cannot be read")
			}
			f.tell()
			return exit, true, nil
		}
		if err := f.hear(event, data); err != nil {
			return 0, false, err
		}
		event, data, f.after = "", "", id
	}
	f.broken = lines.Err() != nil
	return 0, false, nil
}

func (f *follower) hear(event, data string) error {
	switch event {
	case "error":
		f.tell()
		f.said = data
		return nil
	case "stderr":
		return write(f.stderr, data)
	}
	return write(f.stdout, data)
}

// tell warns of what was said.
func (f *follower) tell() {
	if f.said != "" {
		f.warn(f.said)
	}
	f.said = ""
}

const (
	// comeBack is how long a connection that broke is made again without anything new.
	comeBack = time.Minute
	// comeAgain is before each further attempt.
	comeAgain = 300 * time.Millisecond
)

// Attach follows an exec, running or ended, from behind chunk after on, as Run does one that it starts. A connection that breaks is made
// again behind the last byte that came.
func (c *Client) Attach(ctx context.Context, box, exec string, after uint64, stdout, stderr io.Writer, warn func(string)) (int, error) {
	f := follower{stdout: stdout, stderr: stderr, warn: warn, after: after}
	came, patience := false, time.Now().Add(comeBack)
	for {
		res, err := c.Do(ctx, Request{
			Method: http.MethodGet, Path: Box(box, "executions", url.PathEscape(exec), "stream"), Accept: "text/event-stream",
			Query: url.Values{"framing": {"base64"}, "after": {strconv.FormatUint(f.after, 10)}},
		})
		switch {
		case err == nil:
			came = true
			before := f.after
			exit, ended, err := f.read(res)
			_ = res.Body.Close() // all that counts was read
			if err != nil || ended {
				return exit, err
			}
			if f.said != "" && !f.broken {
				return 0, lost(res, f.said)
			}
			if f.after > before {
				patience = time.Now().Add(comeBack)
			}
		case !came || fault.CodeOf(err) != fault.Unavailable:
			return 0, err
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if time.Now().After(patience) {
			return 0, fault.Newf(fault.Lost, fault.ReasonExecLost, "the connection broke and could not be made again; the command may run on (exec %s)", exec)
		}
		if err := pause.For(ctx, comeAgain); err != nil {
			return 0, err
		}
	}
}

// maxInput is the most bytes of a standard input that go at once.
const maxInput = 64 << 10

// Input gives an exec all of in as its standard input, behind what it has taken, and closes it at the end of in. What the exec does not read
// waits; a connection that breaks is made again, and no byte goes in twice.
func (c *Client) Input(ctx context.Context, box, exec string, in io.Reader) error {
	offset, err := c.input(ctx, box, exec, nil, nil, false)
	buf := make([]byte, maxInput)
	for err == nil {
		n, rerr := in.Read(buf)
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			return fmt.Errorf("read stdin: %w", rerr)
		}
		for data := buf[:n]; err == nil && (len(data) > 0 || rerr != nil); {
			var taken uint64
			if taken, err = c.input(ctx, box, exec, &offset, data, rerr != nil); err != nil {
				break
			}
			data = data[min(taken-min(offset, taken), uint64(len(data))):]
			offset = max(offset, taken)
			if len(data) == 0 && rerr != nil {
				return nil
			}
		}
	}
	return err
}

// input writes once; again while the server cannot be reached.
func (c *Client) input(ctx context.Context, box, exec string, offset *uint64, data []byte, eof bool) (uint64, error) {
	query := url.Values{}
	if offset != nil {
		query.Set("offset", strconv.FormatUint(*offset, 10))
	}
	if eof {
		query.Set("close", "true")
	}
	patience := time.Now().Add(comeBack)
	for {
		answer, err := c.Raw(ctx, Request{
			Method: http.MethodPost, Path: Box(box, "executions", url.PathEscape(exec), "stdin"), Query: query, Body: bytes.NewReader(data), Media: "application/octet-stream",
		})
		if err != nil && fault.CodeOf(err) == fault.Unavailable && time.Now().Before(patience) {
			if err := pause.For(ctx, comeAgain); err != nil {
				return 0, err
			}
			continue
		}
		if err != nil {
			return 0, err
		}
		var v struct {
			Offset uint64 `json:"offset"`
		}
		if err := json.Unmarshal(answer, &v); err != nil {
			return 0, fmt.Errorf("the server's answer is no JSON: %w", err)
		}
		return v.Offset, nil
	}
}

// Begin starts a command that is left to itself, and gives the id of its exec.
func (c *Client) Begin(ctx context.Context, box string, cmd Command) (string, error) {
	var v struct {
		ExecutionID string `json:"execution_id"`
	}
	err := c.JSON(ctx, http.MethodPost, "/api/v1/sandboxes/execute", url.Values{"sandbox": {box}}, cmd, &v)
	return v.ExecutionID, err
}

func write(to io.Writer, data string) error {
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return fmt.Errorf("read the command's output: %w", err)
	}
	if _, err := to.Write(raw); err != nil {
		return fmt.Errorf("write the command's output: %w", err)
	}
	return nil
}

func lost(res *http.Response, why string) error {
	return fault.Newf(fault.Lost, fault.ReasonExecLost, "%s (exec %s)", why, res.Header.Get("Sandtrail-Execution-Id"))
}
