package cli_test

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/seal"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/webhook"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

type hook struct {
	Secret    string  `json:"secret"`
	ID        string  `json:"webhook_id"`
	SecretID  string  `json:"secret_id"`
	State     string  `json:"state"`
	Filter    string  `json:"filter"`
	URL       string  `json:"url"`
	After     *uint64 `json:"after"`
	Delivered bool    `json:"delivered"`
}

func TestWebhooksAreKeptInTheLog(t *testing.T) {
	f := natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	t.Setenv("SANDTRAIL_TENANT", "acme")
	path := filepath.Join(t.TempDir(), "webhook.key")
	t.Setenv("SANDTRAIL_WEBHOOK_KEY", path)
	require.Equal(t, cli.ExitUsage, runCLI(nil, nil, "webhook", "create", "https://example.com/").code, "a key that gc does not have is not made")
	key, err := seal.Load(path)
	require.NoError(t, err)
	run := func(args ...string) (h hook) {
		r := runCLI(nil, nil, append(append([]string{"webhook"}, args...), "-o", "json")...)
		require.Equal(t, 0, r.code, r.stderr)
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &h))
		return h
	}
	made := run("create", "https://example.com/hook", "--type", "ExecCompleted", "--kind", "exec", "--description", "bills")
	require.Regexp(t, `^whsec_`, made.Secret)
	require.Equal(t, "acme/exec/*/ExecCompleted", made.Filter)
	h, err := jslog.New(f.JS).Load(t.Context(), subject.Webhook("acme", made.ID))
	require.NoError(t, err)
	p := webhook.Fold(h)
	require.NotContains(t, string(h.Events[0].Data), made.Secret)
	s, err := webhook.Unseal(key, "acme", made.ID, p.Secrets[0].Bytes)
	require.NoError(t, err)
	require.Equal(t, made.Secret, s.Reveal())

	turned := run("rotate", made.ID, "--overlap", "1h")
	require.NotEqual(t, made.Secret, turned.Secret)
	require.Empty(t, run("replay", made.ID, "--from", "3").Secret)
	list := runCLI(nil, nil, "webhook", "ls")
	require.Contains(t, list.stdout, "https://example.com/hook")
	require.NotContains(t, list.stdout+list.stderr, "whsec_")

	// What gc would put down of a test.
	go func() {
		for {
			h, err := jslog.New(f.JS).Load(t.Context(), subject.Webhook("acme", made.ID))
			if err != nil {
				return
			}
			if p := webhook.Fold(h); p.TestID != "" {
				_, _ = webhook.Execute(t.Context(), jslog.New(f.JS), "acme", made.ID, ids.New(), "service:gc", time.Now(),
					webhook.Record{Tested: &eventsv1.WebhookTested{TestId: p.TestID, Status: 500, Message: "it answered 500"}})
				return
			}
		}
	}()
	r := runCLI(nil, nil, "webhook", "test", made.ID)
	require.Equal(t, cli.ExitRefused, r.code, r.stderr)
	require.Contains(t, r.stderr, "it answered 500")
	require.Equal(t, cli.ExitUnavailable, runCLI(nil, nil, "webhook", "test", made.ID, "--wait", "1ms").code)

	require.Equal(t, "deleted", run("delete", made.ID, "--note", "over").State)
	require.NotContains(t, runCLI(nil, nil, "webhook", "ls").stdout, made.ID)
	require.Contains(t, runCLI(nil, nil, "webhook", "ls", "--all").stdout, made.ID)
	for _, args := range [][]string{{"delete", ids.New()}, {"replay", made.ID, "--from", "1"}, {"rotate", made.ID}, {"test", made.ID}} {
		require.Equal(t, cli.ExitNotFound, runCLI(nil, nil, append([]string{"webhook"}, args...)...).code, "%v", args)
	}
	for _, args := range [][]string{
		{"create", "http://example.com/"}, {"create", "https://127.0.0.1/"}, {"create", "https://example.com/", "--kind", "volume"}, {"replay", made.ID, "--from", "0"},
	} {
		require.NotEqual(t, 0, runCLI(nil, nil, append([]string{"webhook"}, args...)...).code, "%v", args)
	}
	require.Equal(t, cli.ExitUsage, runCLI(nil, nil, "webhook", "create", "https://example.com/", "--type", "Nothing").code)
}
