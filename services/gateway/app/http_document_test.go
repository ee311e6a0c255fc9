package app_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ids"
)

// operations are those of the document, by `METHOD /path`.
func (s *spec) operations() map[string]map[string]any {
	all := map[string]map[string]any{}
	for path := range at(s.doc, "paths") {
		for method := range at(s.doc, "paths", path) {
			all[strings.ToUpper(method)+" "+path] = at(s.doc, "paths", path, method)
		}
	}
	return all
}

// The document and the handlers have the same routes: each operation of the document is answered, with the refusals that it names.
func TestHTTPEveryRouteOfTheDocumentIsThere(t *testing.T) {
	w := newWeb(t)
	require.Equal(t, "3.1.0", w.spec.doc["openapi"])
	nobody, other := w.with("ApiKey nobody"), w.with("ApiKey "+secret("bob"))
	box := w.box()
	ops := w.spec.operations()
	require.Len(t, ops, 23)
	named := map[any]bool{}
	for name, op := range ops {
		method, path, _ := strings.Cut(name, " ")
		require.False(t, named[op["operationId"]], "%v is there twice", op["operationId"])
		named[op["operationId"]] = true
		if op["operationId"] == "document" {
			continue
		}
		path = strings.TrimPrefix(path, "/api/v1")
		path = strings.ReplaceAll(path, "{execution_id}", ids.New())
		unknown := strings.ReplaceAll(path, "{id}", box)
		nobody.send(method, unknown, "").problem(t, 401, "key_invalid")
		require.Contains(t, string(w.send(method, unknown+"?surprise=1", "").body), "surprise", "no parameter passes unseen")
		if !strings.Contains(path, "{id}") {
			continue
		}
		// Whatever else is wrong with the call: another tenant's sandbox is not there.
		body := map[string]string{"execute": `{"command":["true"]}`, "write_files": `{"files":[{"path":"f","content":""}]}`, "extend": `{"timeout_seconds":1}`}[fmt.Sprint(op["operationId"])]
		query := map[string]string{
			"read_file": "?path=f", "write_file": "?path=f", "delete_file": "?path=f", "stdin": "?offset=0", "output": "?stream=stdout", "execution_by_key": "?idempotency_key=k",
		}[fmt.Sprint(op["operationId"])]
		require.Equal(t, 404, other.send(method, unknown+query, body).status, name)
	}
}

// The fields that the document gives a body are those that the decoder knows.
func TestHTTPBodiesOfTheDocumentAreThoseOfTheDecoders(t *testing.T) {
	w := newWeb(t)
	box := w.box()
	has := regexp.MustCompile(`it has ([a-z_, ]+)`)
	for name, op := range w.spec.operations() {
		schema := at(op, "requestBody", "content", "application/json", "schema")
		if schema == nil {
			continue
		}
		method, path, _ := strings.Cut(name, " ")
		path = strings.ReplaceAll(strings.TrimPrefix(path, "/api/v1"), "{id}", box)
		a := w.send(method, path, `{"surprise":1}`)
		require.Equal(t, 422, a.status)
		m := has.FindStringSubmatch(string(a.body))
		require.NotNil(t, m, "%s", a.body)
		require.Equal(t, slices.Sorted(maps.Keys(at(schema, "properties"))), strings.Split(m[1], ", "), name)
	}
}

// Whatever a document's enumeration names is refused no more than what it does not name passes.
func TestHTTPEnumerationsOfTheDocument(t *testing.T) {
	w := newWeb(t)
	properties := at(w.spec.operations()["POST /api/v1/sandbox/create"], "requestBody", "content", "application/json", "schema", "properties")
	for field, schema := range properties {
		values, _ := at(schema)["enum"].([]any)
		for _, v := range values {
			w.send("POST", "/sandbox/create", fmt.Sprintf(`{%q:%q}`, field, v)).is(t, 201)
			w.send("POST", "/sandbox/create", fmt.Sprintf(`{%q:"%vx"}`, field, v)).problem(t, 422, "validation", field)
		}
	}
}
