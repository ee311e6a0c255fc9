package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// plain are texts that mean themselves in YAML without quotes.
var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]*$`)

// words mean something else in YAML than themselves.
var words = map[string]bool{"true": true, "false": true, "null": true, "yes": true, "no": true, "on": true, "off": true, "y": true, "n": true}

// YAML writes a JSON document as YAML, its members in their order. Texts that could be taken for something else are quoted.
func YAML(w io.Writer, document []byte) error {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	var b strings.Builder
	if err := yamlValue(&b, d, 0, false); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	_, err := io.WriteString(w, strings.TrimPrefix(b.String(), "\n"))
	return err
}

// yamlValue writes the next value behind a key or a dash. inList says that the first member of an object stands behind the dash.
func yamlValue(b *strings.Builder, d *json.Decoder, depth int, inList bool) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	delim, nested := t.(json.Delim)
	if !nested {
		b.WriteString(" " + yamlScalar(t) + "\n")
		return nil
	}
	if !d.More() {
		_, err := d.Token()
		b.WriteString(map[json.Delim]string{'{': " {}\n", '[': " []\n"}[delim])
		return err
	}
	if !inList || delim == '[' {
		b.WriteByte('\n')
	} else {
		b.WriteByte(' ')
	}
	indent := strings.Repeat("  ", depth)
	for first := true; d.More(); first = false {
		if !first || !inList || delim == '[' {
			b.WriteString(indent)
		}
		if delim == '[' {
			b.WriteByte('-')
			if err := yamlValue(b, d, depth+1, true); err != nil {
				return err
			}
			continue
		}
		key, err := d.Token()
		if err != nil {
			return err
		}
		b.WriteString(yamlScalar(key) + ":")
		if err := yamlValue(b, d, depth+1, false); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

func yamlScalar(t json.Token) string {
	switch v := t.(type) {
	case string:
		if plain.MatchString(v) && !words[strings.ToLower(v)] {
			return v
		}
		quoted, _ := json.Marshal(v) // a string always encodes, and a JSON string is one of YAML
		return string(quoted)
	case nil:
		return "null"
	default:
		return fmt.Sprint(v)
	}
}
