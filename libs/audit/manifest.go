package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/sandtrail/sandtrail/libs/subject"
)

// manifest is what an export says of one segment; each covers the one before it.
type manifest struct {
	Version int    `json:"version"`
	LogID   string `json:"log_id"`
	// Number of the segment, from 1.
	Number uint64 `json:"number"`
	// First and Last are stream sequences.
	First  uint64 `json:"first_sequence"`
	Last   uint64 `json:"last_sequence"`
	Events uint64 `json:"events"`
	// Bytes and SHA256 are those of the segment's file.
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	// Previous is the SHA-256 of the manifest before this one; "" of the first.
	Previous string `json:"previous_sha256"`
}

// plan is what an export is to become.
type plan struct {
	Version int    `json:"version"`
	LogID   string `json:"log_id"`
	// To is the last sequence that it is to have.
	To uint64 `json:"to_sequence"`
}

const (
	exportVersion = 1
	planName      = "export.json"
	// maxManifest bounds a manifest or plan, in bytes.
	maxManifest = 4 << 10
)

func segmentName(n uint64) string  { return fmt.Sprintf("%010d.zst", n) }
func manifestName(n uint64) string { return fmt.Sprintf("%010d.json", n) }

func segmentPath(dir string, n uint64) string  { return filepath.Join(dir, segmentName(n)) }
func manifestPath(dir string, n uint64) string { return filepath.Join(dir, manifestName(n)) }

// encodeJSON is the one way in which a manifest or plan is written.
func encodeJSON(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return append(b, '\n'), err
}

// decodeJSON reads what encodeJSON has written, and nothing else.
func decodeJSON(b []byte, v any) error {
	if len(b) > maxManifest {
		return fmt.Errorf("it has more than %d bytes", maxManifest)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return errors.New("it cannot be read")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something stands behind its end")
	}
	return nil
}

func decodeManifest(b []byte) (manifest, error) {
	var m manifest
	if err := decodeJSON(b, &m); err != nil {
		return m, err
	}
	switch {
	case m.Version != exportVersion:
		return m, fmt.Errorf("version %d is not known", m.Version)
	case !subject.ValidToken(m.LogID), m.Number == 0, m.First == 0, m.Last < m.First, m.Events == 0, m.Events > m.Last-m.First+1, m.Bytes <= 0,
		!isSum(m.SHA256), m.Previous != "" && !isSum(m.Previous):
		return m, errors.New("a field has an impossible value")
	}
	return m, nil
}

func decodePlan(b []byte) (plan, error) {
	var p plan
	if err := decodeJSON(b, &p); err != nil {
		return p, err
	}
	if p.Version != exportVersion || !subject.ValidToken(p.LogID) {
		return p, errors.New("a field has an impossible value")
	}
	return p, nil
}

func isSum(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
