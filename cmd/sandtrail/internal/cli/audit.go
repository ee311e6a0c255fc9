package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/audit"
	"github.com/sandtrail/sandtrail/libs/credential"
	"github.com/sandtrail/sandtrail/libs/permission"
)

// Audit is `sandtrail audit`.
type Audit struct {
	Verify     AuditVerify     `cmd:"" help:"Check every event of the log, or of an export, and say what was changed and where."`
	Checkpoint AuditCheckpoint `cmd:"" help:"Print the last signed checkpoint: keep it where nobody who can change the log can change it."`
	Export     AuditExport     `cmd:"" help:"Write the log into a directory, for a check without the server; goes on where it was."`
	Import     AuditImport     `cmd:"" help:"Put an export into an empty NATS server, to look into it there."`
	Prove      AuditProve      `cmd:"" help:"Make a proof of one event for somebody who has the public key alone."`
	Calls      AuditCalls      `cmd:"" name:"log" help:"List what callers asked for: who, with which key, what, about what, and how it ended."`
	CheckProof AuditCheckProof `cmd:"" help:"Check such a proof."`
}

// AuditLog are the flags of commands that read the whole log: those of Log, with more time.
type AuditLog struct {
	NATS    string          `name:"nats" default:"nats://127.0.0.1:4222" env:"SANDTRAIL_NATS" placeholder:"URL" group:"The log" help:"The NATS server; may hold credentials, which are never printed."`
	Proof   credential.NATS `embed:"" group:"The log"`
	Timeout time.Duration   `default:"24h" help:"Give up after this long."`
	AuditOutput
}

// AuditOutput says how to print.
type AuditOutput struct {
	Output string `short:"o" default:"table" enum:"table,json" help:"Print as ${enum}."`
}

func (l *AuditLog) connect(e *Env, role permission.Role) (context.Context, jetstream.JetStream, func(), error) {
	log := Log{NATS: l.NATS, Proof: l.Proof, Timeout: l.Timeout, Output: l.Output}
	return log.connect(e, role)
}

// open connects to the log to read it.
func (l *AuditLog) open(e *Env) (context.Context, audit.Log, func(), error) {
	ctx, js, done, err := l.connect(e, permission.Operator)
	if err != nil {
		return nil, audit.Log{}, nil, err
	}
	log, err := audit.OpenLog(ctx, js)
	if err != nil {
		err = ended(ctx, err)
		done()
		return nil, log, nil, err
	}
	return ctx, log, done, nil
}

// local is a context for what needs no server.
func (l *AuditLog) local(e *Env) (context.Context, func()) {
	ctx, stop := e.interruptible()
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	return ctx, func() {
		cancel()
		stop()
	}
}

// Trusted are the flags that say whose signatures count.
type Trusted struct {
	Key []string `placeholder:"FILE" env:"SANDTRAIL_AUDIT_KEY" help:"Public key whose signatures count (PEM; up writes STATE/keys/audit.pem.pub). May be repeated, for the keys before a change of it."`
}

func (t *Trusted) keys() (audit.Keys, error) {
	var keys audit.Keys
	for _, path := range t.Key {
		k, err := audit.LoadPublic(path)
		if err != nil {
			return nil, usagef("--key: %w", err)
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// maxCheckpointFile bounds a file with a signed checkpoint, in bytes.
const maxCheckpointFile = 8 << 10

// readFile reads a file of at most so many bytes; - is stdin.
func readFile(e *Env, path string, most int64) ([]byte, error) {
	r := e.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(b)) > most {
		err = usagef("%s has more than %d bytes", path, most)
	}
	return b, err
}

// AuditVerify is `sandtrail audit verify`.
type AuditVerify struct {
	AuditLog
	Trusted
	Export     string   `arg:"" optional:"" type:"path" help:"Directory of an export. Without it the log on the server is checked."`
	Checkpoint []string `placeholder:"FILE" help:"A signed checkpoint that was kept elsewhere (- is stdin): what it covers must still be there. May be repeated."`
	Digest     string   `placeholder:"SHA256" help:"Digest of the export's last manifest, as export printed it."`
}

// Run checks, and ends with ExitTampered where anything is wrong.
func (a *AuditVerify) Run(e *Env) error {
	keys, err := a.keys()
	if err != nil {
		return err
	}
	o := audit.Options{Keys: keys}
	for _, path := range a.Checkpoint {
		text, err := readFile(e, path, maxCheckpointFile)
		if err != nil {
			return usagef("--checkpoint: %w", err)
		}
		c, err := audit.Open(string(text), keys)
		if err != nil {
			return usagef("--checkpoint: %s: %w", path, err)
		}
		o.Known = append(o.Known, c)
	}
	if a.Export == "" {
		if a.Digest != "" {
			return usagef("--digest is that of an export")
		}
		return a.online(e, o)
	}
	return a.offline(e, o)
}

func (a *AuditVerify) online(e *Env, o audit.Options) error {
	ctx, log, done, err := a.open(e)
	if err != nil {
		return err
	}
	defer done()
	o.LastSeq = log.LastSeq
	p := render.NewProgress(e.Stderr)
	o.Progress = func(seq uint64) { p.Events("verify", seq, log.LastSeq) }
	v := audit.NewVerifier(o)
	defer v.Close()
	s, err := log.Open(ctx, 1)
	if err != nil {
		return ended(ctx, err)
	}
	r, err := audit.Verify(ctx, s, v)
	p.Clear()
	if err != nil {
		return ended(ctx, err)
	}
	return a.tell(e, r)
}

func (a *AuditVerify) offline(e *Env, o audit.Options) error {
	ctx, stop := a.local(e)
	defer stop()
	r, err := verifyExport(ctx, e, a.Export, a.Digest, o)
	if err != nil {
		return ended(ctx, err)
	}
	return a.tell(e, r)
}

// verifyExport checks an export, and its last manifest's digest where it is given.
func verifyExport(ctx context.Context, e *Env, dir, digest string, o audit.Options) (audit.Report, error) {
	p := render.NewProgress(e.Stderr)
	defer p.Clear()
	var v *audit.Verifier
	var early []audit.Finding
	s, err := audit.OpenExport(dir, 1, func(f audit.Finding) {
		if v == nil {
			early = append(early, f)
			return
		}
		v.Found(f)
	})
	if err != nil {
		return audit.Report{}, err
	}
	o.LastSeq = s.To()
	o.Progress = func(seq uint64) { p.Events("verify", seq, s.To()) }
	v = audit.NewVerifier(o)
	defer v.Close()
	for _, f := range early {
		v.Found(f)
	}
	r, err := audit.Verify(ctx, s, v)
	if err == nil && digest != "" && digest != s.Digest() {
		r = v.Late(audit.Finding{Kind: audit.Manifest, What: "the last manifest has the digest " + s.Digest() + ", not the one that is given"})
	}
	return r, err
}

func (a *AuditVerify) tell(e *Env, r audit.Report) error {
	if a.Output == "json" {
		out := struct {
			OK bool `json:"ok"`
			audit.Report
		}{r.OK(), r}
		if out.Findings == nil {
			out.Findings = []*audit.Finding{}
		}
		if out.Total == nil {
			out.Total = map[audit.Kind]int{}
		}
		if err := render.Value(e.Stdout, out); err != nil {
			return err
		}
	} else if err := a.words(e, r); err != nil {
		return err
	}
	if !r.OK() {
		return exitError(ExitTampered)
	}
	return nil
}

func (a *AuditVerify) words(e *Env, r audit.Report) error {
	signed := fmt.Sprintf("to %d by %d checkpoints, %d events behind", r.SignedTo, r.Checkpoints, r.Unsigned)
	if r.Checkpoints == 0 {
		signed = "nothing"
	}
	checked := "checked"
	if !r.SignaturesChecked {
		checked = "not checked: no --key"
	}
	result := "whole"
	if !r.OK() {
		result = "NOT what was recorded"
	}
	err := render.Fields(e.Stdout, []render.Field{
		{Name: "Log", Value: r.LogID},
		{Name: "Events", Value: fmt.Sprintf("%d of %d aggregates, to sequence %d", r.Events, r.Aggregates, r.LastSeq)},
		{Name: "Signed", Value: signed},
		{Name: "Signatures", Value: checked},
		{Name: "Result", Value: result},
	})
	if err != nil || r.OK() {
		return err
	}
	return findings(e, "AGGREGATE", r.Findings, r.Total)
}

// findings prints what was found, under a header that says what its subjects are.
func findings(e *Env, subjects string, found []*audit.Finding, total map[audit.Kind]int) error {
	t := render.Table{Header: []string{"WHAT", "WHERE", subjects, "HOW IT SHOWS"}}
	all := 0
	for _, f := range found {
		t.Rows = append(t.Rows, []string{string(f.Kind), f.Where(), f.Subject, f.What})
	}
	for _, n := range total {
		all += n
	}
	fmt.Fprintln(e.Stdout)
	if err := t.Write(e.Stdout); err != nil {
		return err
	}
	if rest := all - len(found); rest > 0 {
		e.warn("%d findings more are not shown", rest)
	}
	return nil
}

// AuditCheckpoint is `sandtrail audit checkpoint`.
type AuditCheckpoint struct {
	AuditLog
	Trusted
}

// Run prints the note, or all that is known of it.
func (a *AuditCheckpoint) Run(e *Env) error {
	keys, err := a.keys()
	if err != nil {
		return err
	}
	ctx, log, done, err := a.open(e)
	if err != nil {
		return err
	}
	defer done()
	c, _, err := audit.Latest(ctx, log, keys)
	if errors.Is(err, audit.ErrSignature) {
		return tampered(err)
	}
	if err != nil {
		return ended(ctx, err)
	}
	if c.Size == 0 {
		return noCheckpoint()
	}
	if a.Output == "json" {
		return render.Value(e.Stdout, checkpointOf(c))
	}
	_, err = fmt.Fprint(e.Stdout, c.Note)
	return err
}

// checkpointJSON is a signed checkpoint as programs get it.
type checkpointJSON struct {
	LogID    string    `json:"log_id"`
	Sequence uint64    `json:"sequence,omitempty"`
	Size     uint64    `json:"size"`
	Root     string    `json:"root"`
	SignedAt time.Time `json:"signed_at"`
	Key      string    `json:"key,omitempty"`
	Note     string    `json:"note"`
}

func checkpointOf(c audit.Checkpoint) checkpointJSON {
	return checkpointJSON{c.LogID, c.Seq, c.Size, fmt.Sprintf("%x", c.Root), c.Time, c.Key, c.Note}
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }
