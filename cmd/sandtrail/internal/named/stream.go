package named

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// Command is what is run in a sandbox.
type Command struct {
	Language string  `json:"language"`
	Code     string  `json:"code"`
	Timeout  float64 `json:"timeout,omitempty"`
	Stdin    []byte  `json:"stdin_base64,omitempty"`
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
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	event, said := "", ""
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case field == "event":
			event = value
		case field != "data":
		case event == "exit":
			code, err := strconv.Atoi(value)
			if err != nil {
				return 0, lost(res, "the server's last word cannot be read")
			}
			if said != "" {
				warn(said)
			}
			return code, nil
		case event == "error":
			if said != "" {
				warn(said)
			}
			said = value
		default:
			to := stdout
			if event == "stderr" {
				to = stderr
			}
			if err := write(to, value); err != nil {
				return 0, err
			}
		}
	}
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case said != "":
		return 0, lost(res, said)
	}
	return 0, lost(res, "the connection broke before its end")
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
