package natstest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// Configured starts a server with JetStream on a free port of loopback, with text in its configuration: who may connect. It holds nothing yet
// and ends with its test.
func Configured(t testing.TB, text string) *server.Server {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "nats.conf")
	// By itself a server takes a part of what is free on the disk, which may be less than streams reserve.
	head := "port: -1\nhost: 127.0.0.1\njetstream: {store_dir: \"" + dir + "\", max_file_store: 1TB}\n"
	require.NoError(t, os.WriteFile(path, []byte(head+text), 0o600))
	o, err := server.ProcessConfigFile(path)
	require.NoError(t, err)
	o.NoSigs, o.NoLog = true, true
	s, err := server.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	return s
}
