package sentry

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pretend is a client of a sentry that answers each request with what answer makes of its method; nil hangs up.
func pretend(t *testing.T, answer func(method string) []byte) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for requests := json.NewDecoder(c); ; {
					var r struct{ Method string }
					if requests.Decode(&r) != nil {
						return
					}
					said := answer(r.Method)
					if said == nil {
						return
					}
					if _, err := c.Write(said); err != nil {
						return
					}
				}
			}()
		}
	}()
	var d net.Dialer
	return New("box", func(ctx context.Context) (*net.UnixConn, error) {
		c, err := d.DialContext(ctx, "unix", l.Addr().String())
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	})
}

func everyone(uint32) bool { return true }

// A sentry that a guest has taken over answers what it likes: that is an error of the call, whose memory is bounded.
func TestASentryMayAnswerAnything(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a test's noise
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 300 {
		noise := make([]byte, 1+random.IntN(4000))
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		noise[0] = 0xff
		c := pretend(t, func(string) []byte { return noise })
		_, err := c.Wait(ctx, 1)
		require.ErrorIs(t, err, ErrGone)
		_, err = c.SignalGroup(ctx, everyone, syscall.SIGKILL)
		require.Error(t, err)
		_, err = c.Times(ctx, nil)
		require.Error(t, err)
		c.Close()
	}
	for _, said := range []string{
		`{"success":true,"result":"x"}`, `{"success":true,"result":[{"pid":"x"}]}`, `{"success":true,"result":[{"pid":99999999999}]}`,
		`{"success":true,"result":[{"pid":7,"threads":{}}]}`, `{"success":false,"err":"no"}`, `[]`, "7\n",
	} {
		c := pretend(t, func(method string) []byte {
			if method == "containerManager.Pause" || method == "containerManager.Resume" {
				return []byte(`{"success":true}`)
			}
			return []byte(said)
		})
		_, err := c.SignalGroup(ctx, everyone, syscall.SIGKILL)
		require.Error(t, err, said)
		_, err = c.Tasks(ctx)
		require.Error(t, err, said)
		c.Close()
	}
}

func TestAnAnswerOfASentryIsBounded(t *testing.T) {
	long := append([]byte(`{"success":true,"result":"`), bytes.Repeat([]byte("x"), 64<<20)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := pretend(t, func(string) []byte { return long })
	_, err := c.Wait(t.Context(), 1)
	require.ErrorIs(t, err, ErrGone)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(maxAnswer*8))
}

// A sandbox that was paused is resumed, whatever went wrong meanwhile, also where the pause came when nobody waited for it any more.
func TestAPauseIsAlwaysFollowedByAResume(t *testing.T) {
	for name, wrong := range map[string][]byte{"list": nil, "refused": []byte(`{"success":false,"err":"no"}`), "noise": []byte("\xff")} {
		t.Run(name, func(t *testing.T) {
			resumed := make(chan struct{}, 1)
			c := pretend(t, func(method string) []byte {
				switch method {
				case "containerManager.Pause":
					return []byte(`{"success":true}`)
				case "containerManager.Resume":
					resumed <- struct{}{}
					return []byte(`{"success":true}`)
				}
				return wrong
			})
			_, err := c.SignalGroup(t.Context(), everyone, syscall.SIGKILL)
			require.Error(t, err)
			<-resumed
		})
	}
	t.Run("late", func(t *testing.T) {
		pause, resumed := make(chan struct{}), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		c := pretend(t, func(method string) []byte {
			if method == "containerManager.Pause" {
				cancel()
				// Nobody waits for it any more.
				<-pause
			} else {
				resumed <- struct{}{}
			}
			return []byte(`{"success":true}`)
		})
		_, err := c.SignalGroup(ctx, everyone, syscall.SIGKILL)
		require.ErrorIs(t, err, context.Canceled)
		close(pause)
		<-resumed
	})
	t.Run("never there", func(t *testing.T) {
		c := pretend(t, func(string) []byte { return nil })
		_, err := c.SignalGroup(t.Context(), everyone, syscall.SIGKILL)
		require.ErrorIs(t, err, ErrGone)
		require.ErrorIs(t, err, io.EOF)
	})
}
