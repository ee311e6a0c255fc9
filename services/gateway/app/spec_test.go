package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func now() time.Time { return time.Now() }

// spec is the served OpenAPI document, against which every answer of every test is held.
type spec struct {
	doc  map[string]any
	seen map[string]bool
}

func newSpec(t testing.TB, base string) *spec {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/api/v1/openapi.json", http.NoBody)
	require.NoError(t, err)
	var res *http.Response
	require.Eventually(t, func() bool { // the listener is there before it is served
		res, err = client.Do(req) //nolint:bodyclose // closed below: the last one is the only one without an error
		return err == nil
	}, patience, tick)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, 200, res.StatusCode, "%s", data)
	s := &spec{seen: map[string]bool{}}
	require.NoError(t, json.Unmarshal(data, &s.doc))
	return s
}

func at(v any, path ...string) map[string]any {
	m, _ := v.(map[string]any)
	for _, p := range path {
		m, _ = m[p].(map[string]any)
	}
	return m
}

var parameter = regexp.MustCompile(`\\\{[a-z_]+\\\}`)

// operation finds that of a method and path: literal segments win, as in the router.
func (s *spec) operation(method, path string) map[string]any {
	best, params := map[string]any(nil), 99
	for template := range at(s.doc, "paths") {
		re := "^" + parameter.ReplaceAllString(regexp.QuoteMeta(template), `[^/]+`) + "$"
		if n := strings.Count(template, "{"); n < params && regexp.MustCompile(re).MatchString(path) {
			if op := at(s.doc, "paths", template, strings.ToLower(method)); op != nil {
				best, params = op, n
			}
		}
	}
	return best
}

// check fails the test where an answer is not one that the document has.
func (s *spec) check(t testing.TB, method, path string, a answer) {
	t.Helper()
	op := s.operation(method, path)
	if op == nil {
		require.Contains(t, []int{400, 404, 405}, a.status, "%s %s is not in the document", method, path)
		s.valid(t, "problem", map[string]any{"$ref": "#/components/schemas/Problem"}, a.body)
		return
	}
	response := at(op, "responses", strconv.Itoa(a.status))
	require.NotNil(t, response, "%s %s answers %d, which is not in the document: %s", method, path, a.status, a.body)
	s.seen[fmt.Sprint(op["operationId"], " ", a.status)] = true
	if response["content"] == nil {
		require.Empty(t, a.body)
		return
	}
	media, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
	content := at(response, "content", media)
	require.NotNil(t, content, "%s %s answers %s", method, path, media)
	if media == "application/json" {
		s.valid(t, method+" "+path, at(content, "schema"), a.body)
	}
}

func (s *spec) valid(t testing.TB, what string, schema map[string]any, body []byte) {
	t.Helper()
	var v any
	require.NoError(t, json.Unmarshal(body, &v), "%s", body)
	require.Empty(t, s.wrong(schema, v, "$"), "%s: %s", what, body)
}

// wrong says where a value is not what a schema allows: types, enumerations, properties and items are looked at.
func (s *spec) wrong(schema map[string]any, v any, path string) []string {
	if ref, ok := schema["$ref"].(string); ok {
		return s.wrong(at(s.doc, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...), v, path)
	}
	if either, ok := schema["oneOf"].([]any); ok {
		for _, e := range either {
			if len(s.wrong(at(e), v, path)) == 0 {
				return nil
			}
		}
		return []string{path + " is none of oneOf"}
	}
	var bad []string
	if !typed(schema["type"], v) {
		bad = append(bad, fmt.Sprintf("%s is no %v", path, schema["type"]))
	}
	if values, ok := schema["enum"].([]any); ok && !among(values, v) {
		bad = append(bad, fmt.Sprintf("%s is %v, none of %v", path, v, values))
	}
	switch x := v.(type) {
	case map[string]any:
		bad = append(bad, s.wrongObject(schema, x, path)...)
	case []any:
		for i, item := range x {
			bad = append(bad, s.wrong(at(schema, "items"), item, fmt.Sprintf("%s[%d]", path, i))...)
		}
	}
	return bad
}

func (s *spec) wrongObject(schema, v map[string]any, path string) (bad []string) {
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, there := v[name.(string)]; !there {
			bad = append(bad, path+"."+name.(string)+" is missing")
		}
	}
	for name, value := range v {
		below := at(schema, "properties", name)
		if below == nil {
			if schema["additionalProperties"] == false {
				bad = append(bad, path+"."+name+" is not in the document")
				continue
			}
			below = at(schema, "additionalProperties")
		}
		bad = append(bad, s.wrong(below, value, path+"."+name)...)
	}
	return bad
}

func among(values []any, v any) bool {
	for _, e := range values {
		if e == v {
			return true
		}
	}
	return false
}

func typed(want, v any) bool {
	switch w := want.(type) {
	case nil:
		return true
	case []any:
		for _, one := range w {
			if typed(one, v) {
				return true
			}
		}
		return false
	case string:
		n, number := v.(float64)
		switch v.(type) {
		case nil:
			return w == "null"
		case bool:
			return w == "boolean"
		case string:
			return w == "string"
		case []any:
			return w == "array"
		case map[string]any:
			return w == "object"
		}
		return number && (w == "number" || w == "integer" && n == float64(int64(n)))
	}
	return false
}
