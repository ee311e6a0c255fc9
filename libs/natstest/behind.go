package natstest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/stretchr/testify/require"
)

// behindWait bounds one question to the server behind a replica that lags.
const behindWait = 30 * time.Second

// Behind is the JetStream of a connection whose direct gets are all answered by a replica that lags: it does not show what was stored
// within the last while. Whatever else is asked, the leaders answer as always. It works with a single server too, so that what is
// asked of a replica and what of a leader can be told apart without luck.
func (f *Fixture) Behind(t testing.TB, nc *nats.Conn, lag time.Duration) jetstream.JetStream {
	t.Helper()
	prefix := "BEHIND" + nuid.Next() + "."
	// A connection of its own: the server side of the replica must not wait behind its client.
	own, err := nats.Connect(f.URL)
	require.NoError(t, err)
	t.Cleanup(own.Close)
	r := &replica{nc: own, lag: lag}
	_, err = own.Subscribe(prefix+">", func(m *nats.Msg) {
		call := strings.TrimPrefix(m.Subject, prefix)
		rest, direct := strings.CutPrefix(call, "DIRECT.GET.")
		if direct {
			go r.answer(rest, m)
			return
		}
		// The client puts the prefix before what it stores in buckets too.
		if !strings.HasPrefix(call, "$KV.") {
			call = "$JS.API." + call
		}
		_ = own.PublishMsg(&nats.Msg{Subject: call, Reply: m.Reply, Header: m.Header, Data: m.Data})
	})
	require.NoError(t, err)
	require.NoError(t, own.Flush())
	js, err := jetstream.NewWithAPIPrefix(nc, strings.TrimSuffix(prefix, "."))
	require.NoError(t, err)
	return js
}

// replica answers direct gets by what stood in a stream a while ago.
type replica struct {
	nc  *nats.Conn
	lag time.Duration
}

// answer answers a direct get. of is the stream, and the subject behind it where its last message is asked for.
func (r *replica) answer(of string, m *nats.Msg) {
	stream, subject, last := strings.Cut(of, ".")
	shown := time.Now().Add(-r.lag)
	request := map[string]any{}
	if len(m.Data) > 0 && json.Unmarshal(m.Data, &request) != nil {
		return
	}
	if one, ok := request["last_by_subj"]; ok {
		subject, last = fmt.Sprint(one), true
	}
	single := last
	switch {
	case last:
		request = map[string]any{"multi_last": []string{subject}, "batch": 1, "up_to_time": shown.UTC()}
	case request["multi_last"] != nil:
		request["up_to_time"] = shown.UTC()
	case request["batch"] == nil:
		single = true
		request["batch"] = 1
	}
	got, ok := r.ask(stream, request)
	if !ok {
		return
	}
	previous := "0"
	for _, a := range got {
		stored, err := time.Parse(time.RFC3339Nano, a.Header.Get(jetstream.TimeStampHeaer))
		if err != nil || stored.After(shown) {
			break
		}
		previous = a.Header.Get(jetstream.SequenceHeader)
		a.Subject, a.Reply = m.Reply, ""
		_ = r.nc.PublishMsg(a)
		if single {
			return
		}
	}
	end := "NATS/1.0 404 No Results\r\n\r\n"
	if previous != "0" {
		end = "NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: " + previous + "\r\n\r\n"
	}
	header, err := nats.DecodeHeadersMsg([]byte(end))
	if err == nil {
		_ = r.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: header})
	}
}

// ask gives the messages of a batch without its end.
func (r *replica) ask(stream string, request map[string]any) ([]*nats.Msg, bool) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, false
	}
	inbox := r.nc.NewInbox()
	sub, err := r.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, false
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := r.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, bytes.Clone(body)); err != nil {
		return nil, false
	}
	var got []*nats.Msg
	for {
		a, err := sub.NextMsg(behindWait)
		if err != nil {
			return nil, false
		}
		if a.Header.Get(jetstream.SequenceHeader) == "" {
			return got, true
		}
		got = append(got, a)
	}
}
