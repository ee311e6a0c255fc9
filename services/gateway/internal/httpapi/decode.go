package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
)

// object reads the one JSON object of a body, field by field, and notes all that is wrong with it. Names count as they are written,
// each may stand there once, and none that was not asked for.
type object struct {
	fields map[string]json.RawMessage
	asked  map[string]bool
	bad    map[string]string
}

// parseObject fails for what is no JSON object, or more than one.
func parseObject(body []byte) (*object, error) {
	o := &object{asked: map[string]bool{}, bad: map[string]string{}}
	if !utf8.Valid(body) {
		return nil, malformed("the body is not valid UTF-8")
	}
	var twice []string
	var err error
	if o.fields, twice, err = members(body); err != nil {
		return nil, err
	}
	for _, name := range twice {
		o.bad[name] = "is given twice"
	}
	return o, nil
}

// members are those of a JSON object, and the names that it has more than once.
func members(text []byte) (all map[string]json.RawMessage, twice []string, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	t, err := d.Token()
	if err != nil || t != json.Delim('{') {
		return nil, nil, malformed("the body must be a JSON object")
	}
	all = map[string]json.RawMessage{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, nil, malformed("the body is not JSON")
		}
		key, ok := name.(string)
		if !ok {
			return nil, nil, malformed("the body is not JSON")
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, nil, malformed("the body is not JSON")
		}
		if _, again := all[key]; again {
			twice = append(twice, key)
		}
		all[key] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, nil, malformed("the body is not JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, malformed("there is something behind the body's object")
	}
	return all, twice, nil
}

func malformed(what string) error { return edge.Malformed(what) }

// take gives the value of a field; false where it is not there. null is as if it were not there.
func (o *object) take(name string) (json.RawMessage, bool) {
	o.asked[name] = true
	v, ok := o.fields[name]
	return v, ok && string(v) != "null"
}

func (o *object) text(name string) (s string, given bool) {
	v, ok := o.take(name)
	if !ok {
		return "", false
	}
	if json.Unmarshal(v, &s) != nil {
		o.bad[name] = "must be a string"
		return "", false
	}
	return s, true
}

// whole reads an integer of 1 to most.
func (o *object) whole(name string, most int64) (n int64, given bool) {
	v, ok := o.take(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < 1 || n > most {
		o.bad[name] = fmt.Sprintf("must be an integer from 1 to %d", most)
		return 0, false
	}
	return n, true
}

func (o *object) flag(name string) bool {
	v, ok := o.take(name)
	if ok && string(v) != "true" && string(v) != "false" {
		o.bad[name] = "must be true or false"
	}
	return string(v) == "true"
}

// texts reads an object of strings.
func (o *object) texts(name string) map[string]string {
	v, ok := o.take(name)
	if !ok {
		return nil
	}
	all, twice, err := members(v)
	if err != nil {
		o.bad[name] = "must be an object of strings"
		return nil
	}
	for _, key := range twice {
		o.bad[element(name, key)] = "is given twice"
	}
	out := make(map[string]string, len(all))
	for key, value := range all {
		var s string
		if string(value) == "null" || json.Unmarshal(value, &s) != nil {
			o.bad[element(name, key)] = "must be a string"
			continue
		}
		out[key] = s
	}
	return out
}

func element(name, key string) string { return fmt.Sprintf("%s[%q]", name, key) }

var (
	decimal = regexp.MustCompile(`^[0-9]{1,6}(\.[0-9]{1,9})?$`)
	millis  = regexp.MustCompile(`^[0-9]{1,9}m$`)
)

// cpus reads CPUs as a number, or a string that may be a Kubernetes quantity (500m), in thousandths.
func (o *object) cpus(name string) uint32 {
	const wrong = "must be a number of CPUs over 0 such as 1, \"0.5\" or \"500m\""
	v, ok := o.take(name)
	if !ok {
		return 0
	}
	s := string(v)
	if strings.HasPrefix(s, `"`) && json.Unmarshal(v, &s) != nil {
		s = ""
	}
	var n *big.Rat
	switch {
	case millis.MatchString(s):
		n, _ = new(big.Rat).SetString(strings.TrimSuffix(s, "m"))
	case decimal.MatchString(s):
		n, _ = new(big.Rat).SetString(s)
		n.Mul(n, big.NewRat(1000, 1))
	default:
		o.bad[name] = wrong
		return 0
	}
	if n.Sign() <= 0 || !n.IsInt() || n.Num().Cmp(big.NewInt(1<<31)) > 0 {
		o.bad[name] = wrong + ", in whole thousandths"
		return 0
	}
	return uint32(n.Num().Int64()) //nolint:gosec // bounded above
}

// command reads an array of strings, or a string for the shell.
func (o *object) command(name string) []string {
	v, ok := o.take(name)
	if !ok {
		o.bad[name] = "is needed: an array of strings, or a string for the shell"
		return nil
	}
	var line string
	if json.Unmarshal(v, &line) == nil {
		if line == "" {
			o.bad[name] = "must not be empty"
		}
		return []string{"/bin/sh", "-c", line}
	}
	var items []json.RawMessage
	if json.Unmarshal(v, &items) != nil || len(items) == 0 {
		o.bad[name] = "must be an array of at least one string, or a string for the shell"
		return nil
	}
	argv := make([]string, len(items))
	for i, item := range items {
		if string(item) == "null" || json.Unmarshal(item, &argv[i]) != nil {
			o.bad[fmt.Sprintf("%s[%d]", name, i)] = "must be a string"
		}
	}
	return argv
}

// upload is one file of a body.
type upload struct {
	Path string
	Data []byte
}

const maxUploads = 100

// uploads reads [{path, content}], the content in base64.
func (o *object) uploads(name string) []upload {
	v, ok := o.take(name)
	var items []json.RawMessage
	if !ok || json.Unmarshal(v, &items) != nil || len(items) == 0 || len(items) > maxUploads {
		o.bad[name] = fmt.Sprintf("must be an array of 1 to %d objects {path, content}", maxUploads)
		return nil
	}
	all := make([]upload, 0, len(items))
	for i, item := range items {
		at := fmt.Sprintf("%s[%d]", name, i)
		f, err := parseObject(item)
		if err != nil {
			o.bad[at] = "must be an object {path, content}"
			continue
		}
		path, ok := f.text("path")
		if !ok && f.bad["path"] == "" {
			f.bad["path"] = "is needed"
		}
		content, ok := f.text("content")
		if !ok && f.bad["content"] == "" {
			f.bad["content"] = "is needed"
		}
		data, err := base64.StdEncoding.Strict().DecodeString(content)
		if err != nil {
			f.bad["content"] = "must be base64"
		}
		f.unknown()
		for field, what := range f.bad {
			o.bad[at+"."+field] = what
		}
		all = append(all, upload{path, data})
	}
	return all
}

// unknown notes the fields that were not asked for.
func (o *object) unknown() {
	for _, name := range slices.Sorted(maps.Keys(o.fields)) {
		if !o.asked[name] {
			o.bad[name] = "is not a field of this request; it has " + strings.Join(slices.Sorted(maps.Keys(o.asked)), ", ")
		}
	}
}

// add notes the fields that another refusal names.
func (o *object) add(err error) {
	var f *fault.Error
	if !errors.As(err, &f) {
		return
	}
	for name, what := range f.Fields {
		if o.bad[name] == "" {
			o.bad[name] = what
		}
	}
}

// err is the refusal of all that is wrong, nil where nothing is.
func (o *object) err() error {
	o.unknown()
	return invalid(o.bad)
}

func invalid(bad map[string]string) error { return edge.Invalid(bad) }
