package app_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
)

// asked is a good request of a route but for its ids: query and body.
type asked struct {
	query, body string
	media       string
	// lists: it names nothing, and shows what is the caller's.
	lists bool
}

// askedOf has every operation of the document that needs a credential: a new one fails the tests until it is here.
var askedOf = map[string]asked{
	"create":           {body: `{}`, lists: true},
	"status":           {},
	"status_alias":     {},
	"execute":          {body: `{"command":["true"]}`},
	"execution_by_key": {query: "?idempotency_key=theirs"},
	"execution":        {},
	"output":           {query: "?stream=stdout"},
	"stop":             {},
	"stop_alias":       {},
	"list":             {lists: true},
	"list_slash":       {lists: true},
	"list_alias":       {lists: true},
	"events":           {},
	"stdin":            {query: "?offset=0&close=true", body: "x", media: "application/octet-stream"},
	"cancel":           {},
	"delete_file":      {query: "?path=f"},
	"read_file":        {query: "?path=f"},
	"write_file":       {query: "?path=f", body: "x", media: "application/octet-stream"},
	"write_files":      {body: `{"files":[{"path":"f","content":""}]}`},
	"list_files":       {query: "?path="},
	"extend":           {body: `{"timeout_seconds":1}`},
	"quota":            {lists: true},
}

// estate is what two tenants have in one world: alice calls, and bob's are foreign to her.
type estate struct {
	*web
	bob                                  *web
	ownBox, ownExec, theirBox, theirExec string
	noBox, noExec                        string
	operations                           []string
	path                                 map[string]string
}

func newEstate(t testing.TB) *estate {
	t.Helper()
	e := &estate{web: newWeb(t), noBox: ids.New(), noExec: ids.New(), path: map[string]string{}}
	e.bob = e.with("ApiKey " + secret("bob"))
	own := func(w *web, key string) (box, exec string) {
		box = w.box()
		exec, _ = w.send("POST", "/sandbox/"+box+"/execute", `{"command":["true"]}`, "Idempotency-Key: "+key).is(t, 200)["execution_id"].(string)
		return box, exec
	}
	e.ownBox, e.ownExec = own(e.web, "mine")
	e.theirBox, e.theirExec = own(e.bob, "theirs")
	for name, op := range e.spec.operations() {
		id := fmt.Sprint(op["operationId"])
		if _, open := op["security"]; open {
			continue
		}
		require.Contains(t, askedOf, id, "%s is not in the table of tenants", name)
		e.path[id] = name
		e.operations = append(e.operations, id)
	}
	slices.Sort(e.operations)
	return e
}

// about makes the request of an operation about a sandbox and an exec.
func (e *estate) about(caller *web, id, box, exec string, headers ...string) answer {
	e.t.Helper()
	r := askedOf[id]
	method, path, _ := strings.Cut(e.path[id], " ")
	path = strings.NewReplacer("{id}", box, "{execution_id}", exec).Replace(strings.TrimPrefix(path, "/api/v1"))
	if r.media != "" {
		headers = append(headers, "Content-Type: "+r.media)
	}
	return caller.send(method, path+r.query, r.body, headers...)
}

// learned is all that a caller learns of an answer, but for the ids that it sent itself, the call's own and the time.
func learned(a answer, sent ...string) string {
	h := maps.Clone(a.header)
	for _, own := range []string{"X-Correlation-Id", "Date"} {
		sent = append(sent, h.Get(own))
		delete(h, own)
	}
	var text strings.Builder
	fmt.Fprintln(&text, a.status)
	for _, name := range slices.Sorted(maps.Keys(h)) {
		fmt.Fprintln(&text, name, h[name])
	}
	text.Write(a.body)
	out := text.String()
	for _, id := range sent {
		if id != "" {
			out = strings.ReplaceAll(out, id, "ID")
		}
	}
	return out
}

// What is another tenant's is answered like what never was, by every route: status, headers and body.
func TestHTTPForeignIsLikeUnknownOnEveryRoute(t *testing.T) {
	e := newEstate(t)
	calls := 0
	for _, id := range e.operations {
		if askedOf[id].lists {
			require.NotContains(t, e.path[id], "{id}")
			continue
		}
		for _, c := range []struct{ theirBox, theirExec, noBox, noExec string }{
			{e.theirBox, e.theirExec, e.noBox, e.noExec},
			{e.ownBox, e.theirExec, e.ownBox, e.noExec},
			{e.theirBox, e.ownExec, e.noBox, e.ownExec},
		} {
			if c.theirBox == e.ownBox && !strings.Contains(e.path[id], "{execution_id}") {
				continue // it would be the caller's own
			}
			calls++
			unknown, foreign := e.about(e.web, id, c.noBox, c.noExec), e.about(e.web, id, c.theirBox, c.theirExec)
			require.Equal(t, http.StatusNotFound, unknown.status, "%s: %s", id, unknown.body)
			require.Equal(t, learned(unknown, c.noBox, c.noExec), learned(foreign, c.theirBox, c.theirExec), id)
			// A key that its owner has used there tells nothing either.
			unknown, foreign = e.about(e.web, id, c.noBox, c.noExec, "Idempotency-Key: theirs"), e.about(e.web, id, c.theirBox, c.theirExec, "Idempotency-Key: theirs")
			require.Equal(t, learned(unknown, c.noBox, c.noExec), learned(foreign, c.theirBox, c.theirExec), "%s with its owner's key", id)
		}
	}
	require.Greater(t, calls, 20)
	// Nothing of bob's was reached.
	require.Equal(t, "running", e.about(e.bob, "status", e.theirBox, "").is(t, 200)["status"])
}

// What names nothing shows and changes the caller's own only, whatever key another tenant has used.
func TestHTTPListsShowOneTenant(t *testing.T) {
	e := newEstate(t)
	e.views("acme", 3, time.Now())
	e.views("globex", 3, time.Now())
	e.bob.send("POST", "/sandbox/create", `{"cpus":2}`, "Idempotency-Key: shared").is(t, 201)
	for _, id := range e.operations {
		if !askedOf[id].lists {
			continue
		}
		a := e.about(e.web, id, "", "", "Idempotency-Key: shared")
		require.Less(t, a.status, 300, "%s: %s", id, a.body)
		require.NotContains(t, string(a.body), e.theirBox, id)
		require.NotContains(t, string(a.body), "globex", id)
	}
}

// BenchmarkForeignBesideUnknown says for each route how long it takes to learn that another tenant's sandbox is not there, as a part of how
// long it takes for one that nobody has: medians, taken in turn. It should be 1.
func BenchmarkForeignBesideUnknown(b *testing.B) {
	e := newEstate(b)
	for _, id := range e.operations {
		if askedOf[id].lists {
			continue
		}
		b.Run(id, func(b *testing.B) {
			var foreign, unknown []time.Duration
			for b.Loop() {
				begin := time.Now()
				e.about(e.web, id, e.theirBox, e.theirExec)
				foreign = append(foreign, time.Since(begin))
				begin = time.Now()
				e.about(e.web, id, ids.New(), ids.New())
				unknown = append(unknown, time.Since(begin))
			}
			slices.Sort(foreign)
			slices.Sort(unknown)
			b.ReportMetric(float64(foreign[len(foreign)/2])/float64(unknown[len(unknown)/2]), "foreign/unknown")
		})
	}
}
