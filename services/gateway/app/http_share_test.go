package app_test

import (
	"bytes"
	"io"
	"mime/multipart"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// form is a file as a form holds it, and its type.
func form(t testing.TB, data string) (io.Reader, string) {
	t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	part, err := m.CreateFormFile("file", "f")
	require.NoError(t, err)
	_, err = io.WriteString(part, data)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	return &b, "Content-Type: " + m.FormDataContentType()
}

// A tenant holds at most half of the memory that HTTP calls have, over both APIs together; whoever else comes has its share.
func TestATenantThatFillsItsShareKeepsNobodyElseFromUploading(t *testing.T) {
	const share = 4 << 20
	w := newWeb(t, func(c *app.Config) { c.HTTPMemory = 2 * share })
	put := func(name, box, path, data string) answer {
		return w.with("ApiKey "+secret(name)).send("PUT", "/sandbox/"+box+"/files?path="+path, data, octets)
	}
	upload := func(name, box, path, data string) answer {
		body, media := form(t, data)
		named := &boxes{world: w.world, base: w.base, headers: []string{"Authorization: Bearer " + secret(name)}}
		return named.send("POST", "/sandboxes/"+box+"/toolbox/files/upload?path="+path, body, media)
	}
	alices, bobs := w.box(), w.with("ApiKey "+secret("bob")).box()

	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	free := func() { once.Do(func() { close(release) }) }
	defer free()
	w.peer.set(func() {
		w.peer.onPart = func(p *commandsv1.WritePart) error {
			if strings.Contains(p.GetPath(), "held") && p.GetOffset() == 0 {
				held <- struct{}{}
				<-release
			}
			return nil
		}
	})
	large := strings.Repeat("x", 1<<20-1) // each call holds 1 MiB for it
	var all sync.WaitGroup
	for i := range share / (1 << 20) {
		all.Go(func() {
			do := put
			if i%2 == 0 {
				do = upload
			}
			if a := do("alice", alices, "held"+string(rune('a'+i)), large); a.status != 200 {
				t.Errorf("upload %d that was under way: %d %s", i, a.status, a.body)
			}
		})
		<-held
	}

	for _, refused := range []answer{put("alice", alices, "more", "x"), upload("alice", alices, "more", "x")} {
		require.Equal(t, "concurrent_change", refused.is(t, 503)["error"].(map[string]any)["reason"])
		require.Equal(t, "1", refused.header.Get("Retry-After"))
	}
	put("bob", bobs, "a", large).is(t, 200)
	upload("bob", bobs, "b", large).is(t, 200)
	free()
	all.Wait()
	put("alice", alices, "more", large).is(t, 200)
	upload("alice", alices, "more", large).is(t, 200)
}
