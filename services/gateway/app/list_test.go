package app_test

import (
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// views puts n views of a tenant into the bucket, made at times that partly coincide.
func (w *world) views(tenant string, n int, made time.Time) map[string]bool {
	w.t.Helper()
	kv, err := w.JS.KeyValue(w.t.Context(), topology.BucketSandbox)
	require.NoError(w.t, err)
	all := map[string]bool{}
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		v := &commandsv1.SandboxView{
			TenantId: tenant, SandboxId: ids.New(), State: []string{"ready", "destroyed", "failed", "requested"}[i%4],
			Requested: &eventsv1.SandboxRequested{SessionId: []string{"s1", "s2"}[i%2]}, CreatedAt: timestamppb.New(made.Add(time.Duration(i/3) * time.Second)),
		}
		all[v.GetSandboxId()] = true
		wg.Go(func() {
			data, _ := proto.Marshal(v)
			_, errs[i] = kv.Put(w.t.Context(), tenant+"."+v.GetSandboxId(), data)
		})
	}
	wg.Wait()
	require.NoError(w.t, errors.Join(errs...))
	return all
}

func TestListPagesAreStable(t *testing.T) {
	w := newWorld(t, nil)
	made := time.Now().Add(-time.Hour)
	want := w.views("acme", 1000, made)
	w.views("globex", 10, made)
	got := map[string]bool{}
	limit := int32(170)
	req := &computev1.ListSandboxesRequest{TenantId: "acme", Page: &commonv1.PageRequest{Limit: &limit}}
	var last time.Time
	for {
		began := time.Now()
		page, err := w.ListSandboxes(t.Context(), req)
		require.NoError(t, err)
		require.Less(t, time.Since(began), 10*time.Second)
		require.LessOrEqual(t, len(page.GetSandboxes()), int(limit))
		for _, s := range page.GetSandboxes() {
			require.False(t, got[s.GetSandboxId()], "twice")
			got[s.GetSandboxId()] = true
			require.True(t, last.IsZero() || !s.GetCreatedAt().AsTime().After(last), "newest first")
			last = s.GetCreatedAt().AsTime()
		}
		if req.Page.Cursor = page.GetPage().GetNextCursor(); req.GetPage().GetCursor() == "" {
			break
		}
		w.views("acme", 5, time.Now()) // newer ones come in between
	}
	require.Equal(t, want, got)

	list := func(r *computev1.ListSandboxesRequest) (n int) {
		for {
			page, err := w.ListSandboxes(t.Context(), r)
			require.NoError(t, err)
			n += len(page.GetSandboxes())
			cursor := page.GetPage().GetNextCursor()
			if cursor == "" {
				return n
			}
			r.Page = &commonv1.PageRequest{Cursor: cursor}
		}
	}
	require.Equal(t, 10, list(&computev1.ListSandboxesRequest{TenantId: "globex"}))
	require.Equal(t, 5, list(&computev1.ListSandboxesRequest{TenantId: "globex", SessionId: "s2"}))
	require.Equal(t, 3, list(&computev1.ListSandboxesRequest{TenantId: "globex", SessionId: "s1", Statuses: []computev1.SandboxStatus{
		computev1.SandboxStatus_SANDBOX_STATUS_READY,
	}}))
	require.Equal(t, 4, list(&computev1.ListSandboxesRequest{TenantId: "globex", Statuses: []computev1.SandboxStatus{
		computev1.SandboxStatus_SANDBOX_STATUS_FAILED, computev1.SandboxStatus_SANDBOX_STATUS_STARTING,
	}}))
	require.Equal(t, 1000+5*5+10, list(&computev1.ListSandboxesRequest{}), "without a tenant all, page by page")
	require.Zero(t, list(&computev1.ListSandboxesRequest{TenantId: "nobody"}))
}

// Each event comes once and in order, over any number of cuts, while others are appended.
func TestWatchEventsResumes(t *testing.T) {
	w := newWorld(t, map[string]string{"alice": "acme", "bob": "globex"})
	const boxes = 40
	var wg sync.WaitGroup
	wg.Go(func() {
		for range boxes {
			for _, who := range []string{"alice", "bob"} {
				if _, err := w.CreateSandbox(w.as(who), &computev1.CreateSandboxRequest{Image: "python"}); err != nil {
					t.Error(err)
				}
			}
		}
	})
	var after uint64
	seen := map[string]int{}
	for total := 0; total < 3*boxes; {
		s, err := w.WatchEvents(w.as("alice"), &computev1.WatchEventsRequest{AfterSequence: after})
		require.NoError(t, err)
		for range 7 {
			e, err := s.Recv()
			require.NoError(t, err)
			if e.GetHeartbeat() {
				require.Equal(t, after, e.GetSequence())
				continue
			}
			require.Greater(t, e.GetSequence(), after)
			require.Equal(t, "acme", e.GetTenantId())
			require.NotEmpty(t, e.GetBodyJson())
			after = e.GetSequence()
			seen[e.GetId()]++
			if total++; total == 3*boxes {
				break
			}
		}
	}
	wg.Wait()
	require.Len(t, seen, 3*boxes)
	s, err := w.WatchEvents(w.as("alice"), &computev1.WatchEventsRequest{AfterSequence: after})
	require.NoError(t, err)
	e, err := s.Recv()
	require.NoError(t, err)
	require.True(t, e.GetHeartbeat(), "alive, nothing new")
}

func TestWatchEventsOfOneSandbox(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	w.create(t.Context())
	exec := drainStream(w.exec(t.Context(), box, "true")).execID
	s, err := w.WatchEvents(t.Context(), &computev1.WatchEventsRequest{SandboxId: box, NoFollow: true})
	require.NoError(t, err)
	var types, execs []string
	for {
		e, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.Equal(t, box, e.GetSandboxId())
		types = append(types, e.GetType())
		if e.GetExecId() != "" {
			execs = append(execs, e.GetExecId())
		}
	}
	require.Len(t, types, 5)
	require.Equal(t, []string{exec, exec}, execs)
	_, err = w.DescribeSandbox(t.Context(), &computev1.DescribeSandboxRequest{SandboxId: ids.New()})
	require.Equal(t, "sandbox_not_found", detail(t, err).GetReason())
}
