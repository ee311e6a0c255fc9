package gvisor

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/launch"
	"github.com/sandtrail/sandtrail/toolbox/server"
)

// saying is a keeper that answers hello and nothing else.
type saying struct {
	server.Handler
	reply *toolboxv1.HelloReply
}

func (s saying) Hello(context.Context, *toolboxv1.Hello) (*toolboxv1.HelloReply, error) {
	return s.reply, nil
}

// A sandbox whose workspace has failed is as good as gone, although it runs.
func TestASandboxIsAliveAsLongAsItsWorkspaceIs(t *testing.T) {
	for name, c := range map[string]struct {
		reply  *toolboxv1.HelloReply
		alive  bool
		reason fault.Reason
	}{
		"well":                  {&toolboxv1.HelloReply{Alive: true}, true, ""},
		"its sentry has ended":  {&toolboxv1.HelloReply{Reason: "sandbox_lost"}, false, fault.ReasonSandboxLost},
		"its workspace failed":  {&toolboxv1.HelloReply{Alive: true, Reason: launch.WorkspaceFailed}, false, fault.ReasonDiskFull},
		"it says something new": {&toolboxv1.HelloReply{Alive: true, Reason: "of a later version"}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, id := &Driver{o: Options{StateDir: t.TempDir()}}, ids.New()
			require.NoError(t, os.MkdirAll(d.dir(id), 0o700))
			l, err := server.Listen(d.dir(id))
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			served := make(chan struct{})
			go func() {
				defer close(served)
				server.Serve(ctx, l, saying{reply: c.reply}, server.WithDrain(0))
			}()
			st, err := d.Inspect(t.Context(), id)
			stop()
			<-served
			require.NoError(t, err)
			require.True(t, st.Exists)
			require.Equal(t, c.alive, st.Alive)
			require.Equal(t, string(c.reason), st.Reason)
		})
	}
}
