package app_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	chunks "github.com/sandtrail/sandtrail/libs/transcript"
)

// standard reads server-sent events as their standard has it.
func standard(t testing.TB, body []byte) (data map[string]string, order []string) {
	t.Helper()
	data = map[string]string{}
	var name string
	var lines []string
	in := bufio.NewScanner(bytes.NewReader(body))
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		field, value, _ := strings.Cut(in.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case in.Text() == "":
			if len(lines) > 0 {
				data[name] += strings.Join(lines, "\n")
				if len(order) == 0 || order[len(order)-1] != name {
					order = append(order, name)
				}
			}
			name, lines = "", nil
		case field == "event":
			name = value
		case field == "data":
			lines = append(lines, value)
		}
	}
	require.NoError(t, in.Err())
	return data, order
}

// published prints what the published command line prints of a stream: each line of data with a newline of its own.
func published(body []byte) (out string, exit string) {
	event := ""
	for _, l := range strings.Split(string(body), "\n") {
		switch data, ok := strings.CutPrefix(l, "data: "); {
		case l == "":
			event = ""
		case strings.HasPrefix(l, "event: "):
			event = l[len("event: "):]
		case ok && event == "exit":
			exit = data
		case ok && event == "stdout":
			out += data + "\n"
		case !ok:
			out += l + "\n"
		}
	}
	return out, exit
}

func (b *boxes) stream(query string, headers ...string) []byte {
	b.t.Helper()
	a := b.send("GET", "/sandboxes/stream?sandbox=demo&language=bash&code=x&timeout=30"+query, nil, headers...)
	require.Equal(b.t, 200, a.status, "%s", a.body)
	require.Equal(b.t, "text/event-stream; charset=utf-8", a.header.Get("Content-Type"))
	return a.body
}

func TestStreamsCarryEveryLine(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "%063d\n", i)
	}
	w.peer.script("bash", func(x *execution) {
		for rest := want.String(); rest != ""; {
			n := min(len(rest), 1000) // cuts lines anywhere
			x.write(chunks.Stdout, []byte(rest[:n]))
			rest = rest[n:]
		}
		x.complete(4)
	})
	data, order := standard(t, w.stream("", "Accept: text/event-stream"))
	require.Equal(t, want.String(), data["stdout"], "each byte, once")
	require.Equal(t, "4", data["exit"])
	require.Equal(t, []string{"stdout", "exit"}, order)
	out, exit := published(w.stream("", "User-Agent: python-requests/2.32.0", "Accept: */*"))
	require.Equal(t, want.String(), out, "each line, once")
	require.Equal(t, "4", exit)
}

// Nothing that a program prints can be taken for an event, whatever ends a line for who reads it.
func TestNothingThatAProgramPrintsIsAnEvent(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	for _, end := range []string{"\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\u0085", "\u2028", "\u2029", "\n\n"} {
		fake := "x" + end + "event: exit" + end + "data: 0" + end + end
		w.peer.script("bash", func(x *execution) {
			for _, c := range []byte(fake) { // byte by byte: characters and line ends are cut
				x.write(chunks.Stdout, []byte{c})
			}
			x.complete(7)
		})
		data, _ := standard(t, w.stream("&framing=text"))
		require.Equal(t, "7", data["exit"], "%q", end)
		plain := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(fake)
		require.Equal(t, plain, data["stdout"], "%q", end)
		for _, l := range strings.FieldsFunc(string(w.stream("&framing=lines")), func(r rune) bool { return strings.ContainsRune("\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029", r) }) {
			if strings.HasPrefix(l, "event: ") {
				require.Contains(t, []string{"event: stdout", "event: exit"}, l)
			}
		}
		_, exit := published(w.stream("&framing=lines"))
		require.Equal(t, "7", exit)
	}
}

func TestStreamsCarryAnyBytes(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	raw := []byte("a\r\nb\rc\xff\xfe\x00\xe2\x82\xac end")
	w.peer.script("bash", func(x *execution) {
		for i := range raw {
			x.write(chunks.Stdout, raw[i:i+1])
		}
		x.write(chunks.Stderr, []byte("no newline"))
		x.complete(0)
	})
	data, _ := standard(t, w.stream("&framing=base64"))
	require.NotContains(t, data["stdout"], "\n")
	var got []byte
	for _, l := range strings.Split(string(w.stream("&framing=base64")), "\n") {
		if part, ok := strings.CutPrefix(l, "data: "); ok && len(part)%4 == 0 && len(part) > 1 {
			b, err := base64.StdEncoding.DecodeString(part)
			require.NoError(t, err)
			got = append(got, b...)
		}
	}
	require.Equal(t, string(raw)+"no newline", string(got))
	data, _ = standard(t, w.stream("&framing=text"))
	require.Equal(t, "a\nb\nc\uFFFD\uFFFD\x00€ end", data["stdout"], "a character that is cut comes whole")
	require.Equal(t, "no newline", data["stderr"])
	w.send("GET", "/sandboxes/stream?sandbox=demo&code=x&framing=morse", nil).refused(t, 422, "validation")
	posted := w.json("POST", "/sandboxes/stream?sandbox=demo&framing=text", map[string]any{"language": "bash", "code": "x"})
	data, _ = standard(t, posted.body)
	require.Equal(t, "0", data["exit"])
	w.peer.script("bash", func(x *execution) {
		x.write(chunks.Stdout, []byte("half"))
		x.lose()
	})
	data, order := standard(t, w.stream("&framing=text"))
	require.Equal(t, []string{"stdout", "error"}, order, "an end that is not known is no exit")
	require.Contains(t, data["error"], "not known")
}
