package stack

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// inner is the link inside of a namespace.
const inner = "link0"

// spaces counts network namespaces, for names and addresses that nobody else has.
var spaces atomic.Uint32

// Net is a network namespace of its own, with one link to this host on which NATS is reached and nothing else.
type Net struct {
	t     *testing.T
	name  string
	link  string
	entry string
}

// Network makes a namespace from which the stack's NATS server is reached. It needs root and ends with the test.
func (s *Stack) Network(t *testing.T) *Net {
	t.Helper()
	i := spaces.Add(1)
	name := fmt.Sprintf("st%x-%d", os.Getpid(), i)
	n := &Net{t: t, name: name, link: name}
	base := fmt.Sprintf("198.18.%d.", os.Getpid()%250) // for tests between networks: RFC 2544
	here, there := base+strconv.Itoa(int(4*i+1)), base+strconv.Itoa(int(4*i+2))
	n.ip("netns", "add", n.name)
	t.Cleanup(func() { n.ip("netns", "del", n.name) })
	n.ip("link", "add", n.link, "type", "veth", "peer", "name", inner, "netns", n.name)
	n.ip("addr", "add", here+"/30", "dev", n.link)
	n.ip("link", "set", n.link, "up")
	n.ip("-n", n.name, "addr", "add", there+"/30", "dev", inner)
	n.ip("-n", n.name, "link", "set", inner, "up")
	n.ip("-n", n.name, "link", "set", "lo", "up")
	l, err := net.Listen("tcp", here+":0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go forward(l, strings.TrimPrefix(s.NATS, "nats://"))
	n.entry = l.Addr().String()
	return n
}

// NATS is the URL of the server as seen from inside.
func (n *Net) NATS() string { return "nats://" + n.entry }

// Inside is what stands before a command that is to run in the namespace. Mounts and cgroups stay those of the host.
func (n *Net) Inside() []string { return []string{"nsenter", "--net=/run/netns/" + n.name} }

// Cut takes the link away: what is sent is lost, and nobody is told. Heal brings it back.
func (n *Net) Cut() { n.ip("link", "set", n.link, "down") }

// Heal is behind Cut.
func (n *Net) Heal() { n.ip("link", "set", n.link, "up") }

func (n *Net) ip(args ...string) {
	n.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(n.t, err, "ip %v\n%s", args, out)
}

// forward takes connections and passes them on to an address until the listener is closed.
func forward(l net.Listener, to string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			out, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer out.Close()
			go func() {
				_, _ = io.Copy(out, in)
				_ = out.Close()
			}()
			_, _ = io.Copy(in, out)
		}()
	}
}
