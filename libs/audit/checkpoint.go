package audit

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Checkpoint is a signed checkpoint: the log as it stood at one sequence.
type Checkpoint struct {
	// LogID is the incarnation of the log.
	LogID string
	// Size is how many events it covers: sequences 1 to Size.
	Size uint64
	// Root of the tree over their leaves, 32 bytes.
	Root []byte
	// Time is when it was signed, by the log's clock.
	Time time.Time
	// Range are the roots of the tree's perfect subtrees, left to right; nil where only the note is known.
	Range [][]byte
	// Note is the signed text.
	Note string
	// Key is the id of the key whose signature was checked; "" where none was.
	Key string
	// Seq is where it stands in the log; 0 where it does not.
	Seq uint64
}

const (
	origin     = "sandtrail/log/"
	timeHeader = "time "
	// maxNote bounds a note, in bytes: a few signatures.
	maxNote = 4 << 10
)

// Keys are public keys whose signatures count.
type Keys []ed25519.PublicKey

func (c Checkpoint) text() string {
	return fmt.Sprintf("%s%s\n%d\n%s\n%s%s\n", origin, c.LogID, c.Size, base64.StdEncoding.EncodeToString(c.Root), timeHeader,
		c.Time.UTC().Format(time.RFC3339Nano))
}

// Sign gives the checkpoint with its note.
func Sign(ctx context.Context, s Signer, c Checkpoint) (Checkpoint, error) {
	v, err := verifier(s.Public())
	if err != nil {
		return c, err
	}
	signed, err := note.Sign(&note.Note{Text: c.text()}, noteSigner{v, func(text []byte) ([]byte, error) { return s.Sign(ctx, text) }})
	if err != nil {
		return c, fmt.Errorf("sign checkpoint of %d events: %w", c.Size, err)
	}
	c.Note, c.Key = string(signed), KeyID(s.Public())
	return c, nil
}

// ErrSignature: a note that none of the given keys has signed.
var ErrSignature = errors.New("it is not signed by any of the given keys")

// Open reads a note. With keys it must be signed by one of them, else it gives ErrSignature; without any nothing is checked.
func Open(text string, keys Keys) (Checkpoint, error) {
	c, err := parseNote(text)
	if err != nil || len(keys) == 0 {
		return c, err
	}
	var known []note.Verifier
	for _, k := range keys {
		v, err := verifier(k)
		if err != nil {
			return c, err
		}
		known = append(known, v)
	}
	opened, err := note.Open([]byte(text), note.VerifierList(known...))
	if err != nil {
		return c, ErrSignature
	}
	c.Key = fmt.Sprintf("%08x", opened.Sigs[0].Hash)
	return c, nil
}

// parseNote reads the text of a note and leaves its signatures alone.
func parseNote(text string) (Checkpoint, error) {
	var c Checkpoint
	if len(text) > maxNote {
		return c, fmt.Errorf("a signed checkpoint of %d bytes is longer than %d", len(text), maxNote)
	}
	lines := strings.Split(text, "\n")
	if len(lines) < 6 || lines[4] != "" {
		return c, errors.New("it is no signed checkpoint: origin, size, root, time, and an empty line before the signatures")
	}
	id, ok := strings.CutPrefix(lines[0], origin)
	if !ok || !subject.ValidToken(id) {
		return c, errors.New("it is no signed checkpoint: the first line names no log of Sandtrail")
	}
	c.LogID, c.Note = id, text
	var err error
	if c.Size, err = strconv.ParseUint(lines[1], 10, 63); err != nil {
		return c, errors.New("it is no signed checkpoint: the size is no number")
	}
	if c.Root, err = base64.StdEncoding.DecodeString(lines[2]); err != nil || len(c.Root) != sha256.Size {
		return c, errors.New("it is no signed checkpoint: the root is no SHA-256 in base64")
	}
	when, ok := strings.CutPrefix(lines[3], timeHeader)
	if c.Time, err = time.Parse(time.RFC3339Nano, when); !ok || err != nil {
		return c, errors.New("it is no signed checkpoint: the time is none")
	}
	// One text for one checkpoint: nothing but what is compared is signed.
	if signed := strings.Join(lines[:4], "\n") + "\n"; signed != c.text() {
		return c, errors.New("it is no signed checkpoint: it is written in another way")
	}
	return c, nil
}

// Event is the checkpoint as an event of Aggregate.
func (c Checkpoint) Event() *eventsv1.LogSigned {
	return &eventsv1.LogSigned{LogId: c.LogID, Size: c.Size, Root: c.Root, Range: c.Range, Note: c.Note}
}

// Aggregate is where the log's checkpoints stand.
func (c Checkpoint) Aggregate() subject.Aggregate { return subject.Log(c.LogID) }

// typeSigned is the type of the event.
const typeSigned = "sandtrail.events.v1.LogSigned"

// OpenEvent reads a checkpoint that stands in the log, as Open does. That its note, its range and its place say the same is checked too.
func OpenEvent(e *Entry, keys Keys) (Checkpoint, error) {
	return openBody(e.Subject, e.Seq, envelope.ReadHead(e.Headers).Type, e.Data, keys)
}

func openBody(on string, seq uint64, kind string, data []byte, keys Keys) (Checkpoint, error) {
	var c Checkpoint
	if kind != typeSigned {
		return c, errors.New("it does not have the type of a signed checkpoint")
	}
	var body eventsv1.LogSigned
	if err := proto.Unmarshal(data, &body); err != nil {
		return c, errors.New("its body cannot be read")
	}
	c, err := Open(body.GetNote(), keys)
	if err != nil {
		return c, err
	}
	c.Range, c.Seq = body.GetRange(), seq
	t, err := treeOf(c.Size, c.Range)
	switch {
	case err != nil:
		return c, err
	case c.LogID != body.GetLogId(), c.Size != body.GetSize(), !bytes.Equal(c.Root, body.GetRoot()), c.Aggregate().Subject() != on:
		return c, errors.New("its body says something else than its signed text")
	case !bytes.Equal(t.root(), c.Root):
		return c, errors.New("its tree does not have the signed root")
	}
	return c, nil
}
