package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// FuzzObject: a body is refused, or every field that was asked for is what the body says, and none passed unasked.
func FuzzObject(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"command":["printf","sandbox-ok"],"working_dir":"/workspace","timeout":10000}`, `{"command":"a","command":"b"}`,
		`{"desktop_os":"linux","cpus":"1","memory":"1Gi","isolation":"container","timeout_seconds":300}`, `{"cpus":0.5,"env":{"A":"1"}}`,
		`{"cpus":"500m"}`, `[`, `{"a":1}{}`, `{"timeout":1e3}`, `null`, `{"stream":true,"env":{"A":null}}`, `{"files":[{"path":"a","content":"aGk="}]}`,
		"{\"a\":\"\xff\"}", `{"\u0063ommand":["x"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := parseObject(body)
		if err != nil {
			if !fault.Is(err, fault.ReasonMalformed) {
				t.Fatalf("another refusal: %v", err)
			}
			return
		}
		var plain map[string]any
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&plain); err != nil {
			t.Fatalf("what is no JSON was read: %v", err)
		}
		argv, env, cpus := o.command("command"), o.texts("env"), o.cpus("cpus")
		dir, _ := o.text("working_dir")
		timeout, timed := o.whole("timeout", 1<<40)
		o.flag("stream")
		files := o.uploads("files")
		if o.err() != nil {
			return
		}
		for _, s := range append(argv, dir) {
			if !utf8.ValidString(s) {
				t.Fatalf("%q is no text", s)
			}
		}
		if len(argv) == 0 || len(files) == 0 || cpus > 1<<31 || timed && timeout < 1 {
			t.Fatalf("%q was let through", body)
		}
		if len(plain) > 7 {
			t.Fatalf("a field passed unasked: %q", body)
		}
		if given, _ := plain["env"].(map[string]any); len(given) != len(env) {
			t.Fatalf("env is %v, and was %v", env, given)
		}
	})
}

// FuzzCPUs: what is read is what the text says, in thousandths.
func FuzzCPUs(f *testing.F) {
	for _, seed := range []string{`1`, `"1"`, `0.5`, `"500m"`, `"0"`, `-1`, `1e9`, `"999999.999"`, `" 1"`, `"1m"`, `[]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		o, err := parseObject([]byte(`{"cpus":` + value + `}`))
		if err != nil {
			return
		}
		n := o.cpus("cpus")
		if o.err() == nil && n == 0 && strings.TrimSpace(value) != "null" {
			t.Fatalf("%s is 0", value)
		}
		if o.err() != nil && n != 0 {
			t.Fatalf("%s is refused and %d", value, n)
		}
	})
}

// FuzzEncoded: output is told byte for byte, whatever it is.
func FuzzEncoded(f *testing.F) {
	for _, seed := range [][]byte{nil, []byte("text"), {0xff}, {0}, []byte("\u2028<>&"), {0xc3}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, encoding := encoded(data)
		wire, err := json.Marshal(map[string]string{"data": text})
		if err != nil {
			t.Fatal(err)
		}
		var back map[string]string
		if err := json.Unmarshal(wire, &back); err != nil {
			t.Fatal(err)
		}
		got := []byte(back["data"])
		if encoding == "base64" {
			got, err = decode64(back["data"])
		}
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%q became %q (%v)", data, got, err)
		}
	})
}

func decode64(s string) ([]byte, error) { return base64.StdEncoding.DecodeString(s) }
