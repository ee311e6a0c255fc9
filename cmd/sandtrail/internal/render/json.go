package render

import (
	"bytes"
	"encoding/json"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Proto is a message as JSON in one line: the fields' names as in the .proto files, those without presence always there,
// 64-bit numbers as strings, bytes as base64.
func Proto(m proto.Message) (json.RawMessage, error) {
	data, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	// protojson varies its spaces on purpose; programs compare lines.
	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// One writes a message as one JSON document.
func One(w io.Writer, m proto.Message) error {
	data, err := Proto(m)
	if err != nil {
		return err
	}
	return document(w, data)
}

// Line writes a message as one line, for streams.
func Line(w io.Writer, m proto.Message) error {
	data, err := Proto(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// Many writes messages as one JSON array.
func Many[M proto.Message](w io.Writer, ms []M) error {
	all := make([]json.RawMessage, 0, len(ms))
	for _, m := range ms {
		data, err := Proto(m)
		if err != nil {
			return err
		}
		all = append(all, data)
	}
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return document(w, data)
}

// Value writes any other value as one JSON document.
func Value(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return document(w, data)
}

func document(w io.Writer, data []byte) error {
	var b bytes.Buffer
	if err := json.Indent(&b, data, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}
