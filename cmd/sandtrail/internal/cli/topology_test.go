package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// thing is one of what `topology --output json` prints.
type thing struct {
	Kind, Name, Stream, State, Why string
	Differences                    []struct{ Setting, Have, Want string }
}

func things(t *testing.T, stdout string) map[string]thing {
	t.Helper()
	var all []thing
	require.NoError(t, json.Unmarshal([]byte(stdout), &all), stdout)
	by := map[string]thing{}
	for _, x := range all {
		by[x.Kind+" "+x.Name] = x
	}
	return by
}

// spoiled is a server that lacks a consumer and a bucket, has another setting of OUT, and a stream of somebody's own.
func spoiled(t *testing.T) *natstest.Fixture {
	t.Helper()
	f := natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	ctx := t.Context()
	require.NoError(t, f.JS.DeleteConsumer(ctx, topology.StreamEvents, topology.ConsumerGC))
	require.NoError(t, f.JS.DeleteKeyValue(ctx, topology.BucketPlace))
	s, err := f.JS.Stream(ctx, topology.StreamOutput)
	require.NoError(t, err)
	config := s.CachedInfo().Config
	config.MaxMsgSize = 4096
	_, err = f.JS.UpdateStream(ctx, config)
	require.NoError(t, err)
	_, err = f.JS.CreateStream(ctx, jetstream.StreamConfig{Name: "mine", Subjects: []string{"mine.>"}})
	require.NoError(t, err)
	return f
}

func TestTopologyDiffOfAServerThatIsAsItShouldBe(t *testing.T) {
	f := natstest.Start(t)
	r := runCLI(nil, nil, "topology", "diff", "--nats", f.URL)
	require.Equal(t, cli.ExitOK, r.code, r.stderr+r.stdout)
	for _, name := range []string{"EVT", "sandbox", topology.ConsumerScheduler} {
		require.Contains(t, r.stdout, name)
	}
	require.NotContains(t, r.stdout, "different")
	require.Equal(t, cli.ExitDifferent, runCLI(nil, nil, "topology", "diff", "--nats", f.URL, "--worker", "w9").code, "its consumers are missing")
}

func TestTopologyDiffShowsEachDifferenceAndChangesNothing(t *testing.T) {
	spoiled(t)
	for _, words := range [][]string{{"topology", "diff"}, {"topology", "ensure", "--dry-run"}, {"topology", "diff"}} {
		r := runCLI(nil, nil, words...)
		require.Equal(t, cli.ExitDifferent, r.code, r.stderr)
		var found bool
		for line := range strings.Lines(r.stdout) {
			if strings.Contains(line, "max_msg_size") {
				found = true
				require.Equal(t, []string{"stream", "OUT", "-", "different", "max_msg_size", "4096", "262144"}, strings.Fields(line))
			}
		}
		require.True(t, found, r.stdout)
		by := things(t, runCLI(nil, nil, append(words, "--output", "json")...).stdout)
		require.Equal(t, "missing", by["bucket place"].State)
		require.Equal(t, thing{
			Kind: "consumer", Name: topology.ConsumerGC, Stream: topology.StreamEvents, State: "missing",
			Differences: []struct{ Setting, Have, Want string }{{"exists", "false", "true"}},
		}, by["consumer "+topology.ConsumerGC])
		require.Equal(t, "unknown", by["stream mine"].State)
		require.Equal(t, "same", by["stream EVT"].State)
	}
}

func TestTopologyEnsureMendsWhatDiffers(t *testing.T) {
	spoiled(t)
	r := runCLI(nil, nil, "topology", "ensure", "--output", "json", "--worker", "w9")
	require.Equal(t, cli.ExitOK, r.code, r.stderr)
	by := things(t, r.stdout)
	require.Equal(t, "changed", by["stream OUT"].State)
	require.Equal(t, "made", by["bucket place"].State)
	require.Equal(t, "made", by["consumer "+topology.ConsumerExec("w9")].State)
	require.Equal(t, "unknown", by["stream mine"].State)
	require.Equal(t, cli.ExitOK, runCLI(nil, nil, "topology", "diff", "--worker", "w9").code)
}

func TestTopologyEnsureRefusesToLoseMessagesAndDoesTheRest(t *testing.T) {
	f := spoiled(t)
	_, err := f.JS.Publish(t.Context(), subject.Tenant("acme").Subject(), make([]byte, 4<<10))
	require.NoError(t, err)
	r := runCLI(nil, nil, "topology", "ensure", "--events-max-bytes", "1024")
	require.Equal(t, cli.ExitRefused, r.code, r.stdout)
	require.Contains(t, r.stderr, "stream EVT is refused: lowering max_bytes")
	require.Equal(t, 1, count(t, f, topology.StreamEvents))
	require.Equal(t, cli.ExitOK, runCLI(nil, nil, "topology", "diff").code)
}

func TestTopologyMistakes(t *testing.T) {
	require.Equal(t, cli.ExitUnavailable, runCLI(nil, nil, "topology", "diff", "--nats", "nats://127.0.0.1:1").code)
	require.Equal(t, cli.ExitUsage, runCLI(nil, nil, "topology", "diff", "--events-max-bytes", "-1").code)
	f := natstest.Start(t)
	require.Equal(t, cli.ExitRefused, runCLI(nil, nil, "topology", "diff", "--nats", f.URL, "--worker", "a.b").code)
}
