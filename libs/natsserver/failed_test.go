package natsserver_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/natsserver"
)

// smallDisk is a directory with room for little.
func smallDisk(t *testing.T) string {
	t.Helper()
	require.Zero(t, os.Geteuid(), "mounting a small disk needs root")
	dir := filepath.Join(t.TempDir(), "store")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, unix.Mount("small", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestAServerSaysThatItsDiskHasNoRoom(t *testing.T) {
	dir := smallDisk(t)
	s, err := natsserver.Start(natsserver.Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(s.Shutdown)
	nc, err := s.Connect()
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Storage: jetstream.FileStorage})
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), "s", []byte("first"))
	require.NoError(t, err)
	select {
	case err := <-s.Failed():
		require.NoError(t, err, "it has room")
	default:
	}

	fill(t, js)
	select {
	case err := <-s.Failed():
		require.Error(t, err)
	case <-time.After(30 * time.Second):
		require.Fail(t, "it says nothing")
	}

	// Room alone does not help it; a start does, and what was acknowledged is there.
	s.Shutdown()
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=64m"))
	again, err := natsserver.Start(natsserver.Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(again.Shutdown)
	nc, err = again.Connect()
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err = jetstream.New(nc)
	require.NoError(t, err)
	ack, err := js.Publish(t.Context(), "s", []byte("later"))
	require.NoError(t, err)
	require.Greater(t, ack.Sequence, uint64(1))
	require.Empty(t, again.Failed())
}

// fill publishes until the server takes no more.
func fill(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	for range 1000 {
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "s", Data: make([]byte, 256<<10)}, jetstream.WithRetryAttempts(0)); err != nil {
			return
		}
	}
	require.Fail(t, "it took more than its disk holds")
}
