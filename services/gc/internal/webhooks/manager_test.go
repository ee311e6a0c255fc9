package webhooks_test

import (
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/webhook"
)

// Every event arrives at least once, signed, those of an aggregate in order, although the endpoint fails and breaks off now and then and
// the process is killed again and again.
func TestEventsArriveInOrderWhateverDies(t *testing.T) {
	w := newWorld(t)
	p := listen(t)
	p.answer = func(int, events.CloudEvent) int {
		return []int{204, 200, 204, 204, 204, 500, 429, 0}[rand.IntN(8)]
	}
	w.register(p, p.URL, events.Filter{})
	want := map[string][]string{}
	const lives, each = 6, 8
	for range lives {
		_, kill := w.run()
		n := len(p.taken())
		for i := range 5 {
			agg := box(i)
			want["sandbox/"+agg.ID] = append(want["sandbox/"+agg.ID], w.write(agg, each)...)
		}
		w.until(func() bool { return len(p.taken()) > n+each }, "some were taken in this life")
		kill()
	}
	w.write(subject.Sandbox("globex", "s"), 3)
	w.run()
	w.until(func() bool { return distinct(p.taken()) == lives*5*each }, "all were taken")
	inOrder(t, p.taken(), want)
}

func distinct(all []message) int {
	seen := map[string]bool{}
	for _, m := range all {
		seen[m.ID] = true
	}
	return len(seen)
}

// What was taken is not sent again by a process that ended in good order, and a filter is kept.
func TestAProcessGoesOnWhereTheLastOneEnded(t *testing.T) {
	w := newWorld(t)
	p := listen(t)
	w.register(p, p.URL, events.Filter{Kinds: []subject.Kind{subject.KindSandbox}, Types: []string{"SandboxUsageSampled"}})
	w.write(subject.Exec("acme", "s", "x"), 1)
	w.write(box(1), 20)
	stop, _ := w.run()
	w.until(func() bool { return p.count() == 20 }, "all were sent")
	stop()
	w.write(box(1), 5)
	w.run()
	w.until(func() bool { return p.count() >= 25 }, "the rest was sent")
	require.Equal(t, 25, p.count(), "each once")
}

// An endpoint that does not answer in time holds up its own aggregate only, and nobody else.
func TestASlowEndpointHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	w.cfg.Timeout = 100 * time.Millisecond
	slow, quick := listen(t), listen(t)
	release := make(chan struct{})
	slow.hold = func(r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}
	w.register(slow, slow.URL, events.Filter{})
	w.register(quick, quick.URL, events.Filter{})
	want := map[string][]string{"sandbox/s1": w.write(box(1), 10)}
	w.run()
	w.until(func() bool { return len(quick.taken()) == 10 && slow.count() > 3 }, "the other one got everything meanwhile")
	slow.set(func() {
		for _, m := range slow.got {
			require.Equal(t, want["sandbox/s1"][0], m.ID, "nothing overtakes an event of its aggregate")
		}
		slow.hold = nil
	})
	close(release)
	w.until(func() bool { return distinct(slow.taken()) == 10 }, "it got the rest once it answered")
	inOrder(t, slow.taken(), want)
}

// 410 disables the endpoint, and a replay enables it again.
func TestAnEndpointThatIsGoneIsLeftAloneUntilAReplay(t *testing.T) {
	w := newWorld(t)
	p := listen(t)
	var gone atomic.Bool
	gone.Store(true)
	p.answer = func(int, events.CloudEvent) int {
		if gone.Load() {
			return http.StatusGone
		}
		return http.StatusOK
	}
	id := w.register(p, p.URL, events.Filter{})
	first := w.write(box(1), 3)
	w.run()
	w.until(func() bool { return w.state(id).Disabled == "gone" }, "it was disabled")
	n := p.count()
	w.write(box(1), 3)
	gone.Store(false)
	h, err := w.log.Load(t.Context(), box(1))
	require.NoError(t, err)
	require.Equal(t, n, p.count(), "nothing more was sent")
	w.do(id, webhook.Replay{From: h.Events[0].Seq})
	w.until(func() bool { return len(p.taken()) == 6 }, "everything was sent")
	require.Equal(t, first[0], p.taken()[0].ID)
}

// A replay sends again what was sent, from the sequence on.
func TestAReplaySendsAgain(t *testing.T) {
	w := newWorld(t)
	p := listen(t)
	id := w.register(p, p.URL, events.Filter{})
	all := w.write(box(1), 6)
	w.run()
	w.until(func() bool { return p.count() == 6 }, "all were sent")
	h, err := w.log.Load(t.Context(), box(1))
	require.NoError(t, err)
	w.do(id, webhook.Replay{From: h.Events[3].Seq})
	w.until(func() bool { return p.count() == 9 }, "three were sent again")
	var ids []string
	for _, m := range p.taken()[6:] {
		ids = append(ids, m.ID)
	}
	require.Equal(t, all[3:], ids)
}

// An answer without an end costs a few kilobytes and no time.
func TestAnEndpointThatFloodsIsCutOff(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int32
	flood := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		block := []byte(strings.Repeat("x", 64<<10))
		for r.Context().Err() == nil {
			if _, err := rw.Write(block); err != nil {
				return
			}
		}
	}))
	defer flood.Close()
	id := w.register(nil, flood.URL, events.Filter{})
	w.write(box(1), 5)
	w.run()
	w.until(func() bool { return calls.Load() == 5 }, "each was delivered")
	w.do(id, webhook.Test{})
	w.until(func() bool { t := w.state(id).Tested; return t != nil && t.GetDelivered() }, "200 is success, whatever follows")
	require.EqualValues(t, 6, calls.Load(), "none was sent twice")
}

// After so many failures an event is set aside with the reason, its aggregate goes on, and an operator may give it back.
func TestAnEventThatIsNeverTakenIsSetAside(t *testing.T) {
	w := newWorld(t)
	w.cfg.Backoff.Attempts = 3
	p := listen(t)
	all := map[string]bool{}
	p.answer = func(_ int, e events.CloudEvent) int {
		if all[e.ID] {
			return http.StatusUnprocessableEntity
		}
		return http.StatusOK
	}
	id := w.register(p, p.URL, events.Filter{})
	events := w.write(box(1), 4)
	p.set(func() { all[events[1]] = true })
	w.run()
	w.until(func() bool { return len(p.taken()) == 3 }, "the others were taken")
	require.Equal(t, 3+3, p.count())
	letters, err := dlq.New(w.JS, w.log).List(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	require.Len(t, letters, 1)
	l := letters[0]
	require.Equal(t, topology.ConsumerWebhook(id), l.Consumer)
	require.Equal(t, events[1], l.MessageID)
	require.Equal(t, 3, l.Attempts)
	require.Equal(t, "attempts", l.Reason)
	require.Contains(t, l.Error, "it answered 422")
	p.set(func() { clear(all) })
	_, err = dlq.New(w.JS, w.log).Redrive(t.Context(), l.ID, dlq.Operator{Name: "ann"})
	require.NoError(t, err)
	require.Equal(t, events[1], p.taken()[3].ID)
}

func TestWhereMessagesMayNotGoNothingGoes(t *testing.T) {
	w := newWorld(t)
	w.cfg.Guard, w.cfg.Backoff.Attempts = webhook.Guard{}, 2
	p, other := listen(t), listen(t)
	id := w.register(p, p.URL, events.Filter{})
	w.write(box(1), 1)
	stop, _ := w.run()
	var letters []dlq.Letter
	w.until(func() bool {
		var err error
		letters, err = dlq.New(w.JS, w.log).List(t.Context(), dlq.Filter{})
		return err == nil && len(letters) == 1
	}, "it was set aside")
	require.Contains(t, letters[0].Error, "its address is not public")
	require.NotContains(t, letters[0].Error, "127.0.0.1")
	require.Zero(t, p.count())
	w.do(id, webhook.Test{})
	w.until(func() bool { return w.state(id).Tested != nil }, "the test had an outcome")
	require.False(t, w.state(id).Tested.GetDelivered())
	require.Zero(t, p.count())
	stop()

	w.cfg.Guard.Private = true
	redirect := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer redirect.Close()
	away := w.register(nil, redirect.URL, events.Filter{})
	w.run()
	w.do(away, webhook.Test{})
	w.until(func() bool { t := w.state(away).Tested; return t != nil && t.GetStatus() == http.StatusFound }, "a redirect is a failure")
	require.Zero(t, other.count(), "and is not followed")
}

func TestATestSaysWhatCameOfIt(t *testing.T) {
	w := newWorld(t)
	p := listen(t)
	id := w.register(p, p.URL, events.Filter{})
	w.run()
	w.do(id, webhook.Test{})
	w.until(func() bool { return w.state(id).Tested != nil }, "there is an outcome")
	got := w.state(id).Tested
	require.True(t, got.GetDelivered())
	require.EqualValues(t, 204, got.GetStatus())
	require.Equal(t, "sandtrail.events.v1.WebhookTestRequested", p.taken()[0].Type)
	p.set(func() { p.answer = func(int, events.CloudEvent) int { return 503 } })
	w.do(id, webhook.Test{})
	w.until(func() bool { return w.state(id).Tested != nil }, "there is an outcome")
	require.False(t, w.state(id).Tested.GetDelivered())
	require.Contains(t, w.state(id).Tested.GetMessage(), "it answered 503")
}

// While a secret is being rotated messages are signed with both, and one that cannot be opened sends nothing unsigned.
func TestRotationSignsWithBoth(t *testing.T) {
	w := newWorld(t)
	p := listen(t)
	id := w.register(p, p.URL, events.Filter{})
	fresh := webhook.NewSecret()
	sealed, err := fresh.Seal(w.key, "acme", id)
	require.NoError(t, err)
	w.do(id, webhook.Rotate{Sealed: sealed, SecretID: fresh.ID, At: time.Now(), PreviousUntil: time.Now().Add(time.Hour)})
	w.write(box(1), 1)
	stop, _ := w.run()
	w.until(func() bool { return p.count() == 1 }, "it was sent, and the old secret verifies it")
	require.Len(t, strings.Fields(p.taken()[0].signature), 2)
	stop()
	w.do(id, webhook.Rotate{Sealed: sealed, SecretID: "other", At: time.Now()})
	p.set(func() { p.secret = fresh.Reveal() })
	w.write(box(1), 1)
	stop, _ = w.run()
	w.until(func() bool { return p.count() == 2 }, "it was sent, and the new secret verifies it")
	require.Len(t, strings.Fields(p.taken()[1].signature), 1)
	stop()
	w.do(id, webhook.Rotate{Sealed: []byte("not sealed by us, but long enough to be"), SecretID: "bad", At: time.Now()})
	w.run()
	w.do(id, webhook.Test{})
	w.until(func() bool { return w.state(id).Tested != nil }, "there is an outcome")
	require.Contains(t, w.state(id).Tested.GetMessage(), "rotate it")
	require.Equal(t, 2, p.count())
}
