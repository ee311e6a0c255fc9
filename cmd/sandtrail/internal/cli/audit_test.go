package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/audit"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// signed is a log of five events of two sandboxes, signed, and one behind; key is the file with the public key.
func signed(t *testing.T) (f *natstest.Fixture, key string) {
	t.Helper()
	f = natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	log := jslog.New(f.JS)
	event := func(id string, n int) {
		agg := subject.Sandbox("acme", id)
		h, err := log.Load(t.Context(), agg)
		require.NoError(t, err)
		_, err = log.Append(t.Context(), agg, h.Tail(), envelope.Event{
			Meta: envelope.Meta{ID: fmt.Sprint(id, n), Actor: "key:ci"}, Body: &eventsv1.SandboxUsageSampled{UptimeMs: uint64(n)},
		})
		require.NoError(t, err)
	}
	for i := range 5 {
		event(fmt.Sprint("s", i%2), i)
	}
	path := filepath.Join(t.TempDir(), "audit.pem")
	signer, err := audit.LoadSigner(path)
	require.NoError(t, err)
	_, err = audit.Writer{JS: f.JS, Log: log, Signer: signer, Actor: "service:gc", Now: time.Now}.Sign(t.Context())
	require.NoError(t, err)
	event("s0", 9)
	return f, path + ".pub"
}

func TestAuditFromTheLogToAProof(t *testing.T) {
	_, key := signed(t)
	dir := filepath.Join(t.TempDir(), "export")

	r := runCLI(nil, nil, "audit", "verify", "--key", key)
	require.Equal(t, 0, r.code, r.stderr)
	require.Regexp(t, `(?m)^Events +7 of 3 aggregates, to sequence 7$`, r.stdout)
	require.Regexp(t, `(?m)^Signed +to 5 by 1 checkpoints, 2 events behind$`, r.stdout)
	require.Regexp(t, `(?m)^Signatures +checked$`, r.stdout)
	require.Regexp(t, `(?m)^Result +whole$`, r.stdout)

	r = runCLI(nil, nil, "audit", "checkpoint", "--key", key)
	require.Equal(t, 0, r.code, r.stderr)
	require.True(t, strings.HasPrefix(r.stdout, "sandtrail/log/"))
	kept := filepath.Join(t.TempDir(), "checkpoint")
	require.NoError(t, os.WriteFile(kept, []byte(r.stdout), 0o600))

	r = runCLI(nil, nil, "audit", "export", dir, "-o", "json")
	require.Equal(t, 0, r.code, r.stderr)
	var exported audit.Exported
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &exported))
	require.EqualValues(t, 7, exported.LastSeq)

	r = runCLI(nil, nil, "audit", "verify", dir, "--key", key, "--checkpoint", kept, "--digest", exported.Digest, "-o", "json")
	require.Equal(t, 0, r.code, r.stderr+r.stdout)
	var report struct {
		OK       bool
		Events   int
		Findings []audit.Finding
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &report))
	require.True(t, report.OK)
	require.Equal(t, 7, report.Events)
	require.NotNil(t, report.Findings)

	for _, from := range [][]string{nil, {"--export", dir}} {
		r = runCLI(nil, nil, append([]string{"audit", "prove", "3", "--key", key}, from...)...)
		require.Equal(t, 0, r.code, r.stderr)
		proof := filepath.Join(t.TempDir(), "proof.json")
		require.NoError(t, os.WriteFile(proof, []byte(r.stdout), 0o600))
		r = runCLI(nil, nil, "audit", "check-proof", proof, "--key", key)
		require.Equal(t, 0, r.code, r.stderr)
		require.Regexp(t, `(?m)^Result +proved$`, r.stdout)
		require.Regexp(t, `(?m)^Event +3 on evt.acme.sandbox.s0$`, r.stdout)
		r = runCLI(nil, nil, "audit", "check-proof", proof, "--key", key, "-o", "json")
		require.Equal(t, 0, r.code, r.stderr)
		require.Contains(t, r.stdout, `"uptimeMs"`)
	}

	empty := natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", empty.URL)
	r = runCLI(nil, nil, "audit", "import", dir, "--key", key)
	require.Equal(t, 0, r.code, r.stderr)
	r = runCLI(nil, nil, "audit", "verify", "--key", key, "--checkpoint", kept)
	require.Equal(t, 0, r.code, r.stderr+r.stdout)
	r = runCLI(nil, nil, "audit", "import", dir)
	require.Equal(t, cli.ExitRefused, r.code, r.stderr)
	require.Contains(t, r.stderr, "not empty")
}

func TestAuditSaysWhatIsWrongAndEndsWithItsCode(t *testing.T) {
	f, key := signed(t)
	_, strange := signedKey(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	proof := filepath.Join(t.TempDir(), "proof.json")
	require.Equal(t, 0, runCLI(nil, nil, "audit", "prove", "3", "--to", proof).code)
	dir := filepath.Join(t.TempDir(), "export")
	require.Equal(t, 0, runCLI(nil, nil, "audit", "export", dir).code)
	// Somebody writes to the log what is no event.
	require.NoError(t, f.NC.PublishMsg(&nats.Msg{Subject: "evt.acme.sandbox.s1", Data: []byte("x\x1b")}))
	require.NoError(t, f.NC.Flush())
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"verify":                                     {cli.ExitTampered, "foreign"},
		"verify -o json":                             {cli.ExitTampered, `"ok": false`},
		"verify --key " + strange:                    {cli.ExitTampered, "forged"},
		"verify " + dir + " --digest 00":             {cli.ExitTampered, "manifest"},
		"verify --digest 00":                         {cli.ExitUsage, "--digest"},
		"verify --key /nowhere":                      {cli.ExitUsage, "--key"},
		"verify " + t.TempDir():                      {cli.ExitNotFound, "no export"},
		"verify --nats nats://127.0.0.1:1":           {cli.ExitUnavailable, "NATS"},
		"checkpoint --key " + strange:                {cli.ExitTampered, "not"},
		"prove 99":                                   {cli.ExitNotFound, "no event 99"},
		"prove 6":                                    {cli.ExitRefused, "no signed checkpoint"},
		"prove 3 --to " + proof:                      {cli.ExitUsage, "--to"},
		"check-proof " + proof:                       {cli.ExitUsage, "--key"},
		"check-proof " + proof + " --key " + strange: {cli.ExitTampered, "not signed"},
		"check-proof " + key + " --key " + key:       {cli.ExitTampered, "no proof"},
		"check-proof /nowhere --key " + key:          {cli.ExitNotFound, "/nowhere"},
		"export " + filepath.Dir(key):                {cli.ExitRefused, "holds no export"},
		"export " + dir + " --to 99":                 {cli.ExitUsage, "--to"},
	} {
		t.Run(args, func(t *testing.T) {
			r := runCLI(nil, nil, append([]string{"audit"}, strings.Fields(args)...)...)
			require.Equal(t, want.code, r.code, r.stderr+r.stdout)
			require.Contains(t, r.stdout+r.stderr, want.says)
			require.NotContains(t, r.stdout+r.stderr, "\x1b")
		})
	}
}

func signedKey(t *testing.T) (audit.Signer, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "strange.pem")
	s, err := audit.LoadSigner(path)
	require.NoError(t, err)
	return s, path + ".pub"
}

// An interrupted export ends as an interruption, and the next one goes on.
func TestAuditExportCanBeInterrupted(t *testing.T) {
	_, key := signed(t)
	dir := filepath.Join(t.TempDir(), "export")
	interrupt := make(chan os.Signal, 1)
	interrupt <- os.Interrupt
	r := runCLI(nil, interrupt, "audit", "verify", "--key", key)
	require.Contains(t, []int{0, cli.ExitCancelled}, r.code, "it may be faster than the interrupt")
	r = runCLI(nil, nil, "audit", "export", dir, "--to", "3")
	require.Equal(t, 0, r.code, r.stderr)
	r = runCLI(nil, nil, "audit", "export", dir)
	require.Equal(t, 0, r.code, r.stderr)
	require.Regexp(t, `(?m)^Events +to sequence 7, 4 of them now$`, r.stdout)
	require.Equal(t, 0, runCLI(nil, nil, "audit", "verify", dir, "--key", key).code)
}
