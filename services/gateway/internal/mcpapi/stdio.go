package mcpapi

import (
	"context"
	"errors"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxLineBytes bounds one message of a client that talks by lines.
const maxLineBytes = 4 << 20

// ServeLines talks to one client by lines of JSON until it closes in, or ctx ends, which is no error.
func (t *Tools) ServeLines(ctx context.Context, in io.Reader, out io.Writer) error {
	err := t.Serve(ctx, &mcp.IOTransport{Reader: io.NopCloser(in), Writer: unclosed{out}, MaxLineLength: maxLineBytes})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
