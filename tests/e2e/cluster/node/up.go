// Package node makes the namespaces that a Kubernetes node of a test lives in: mounts, network, processes, cgroups, host name, IPC. From inside
// it is a machine; from outside it is one process, and when that ends the kernel ends all others with it.
package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/process"
)

// Options of a node.
type Options struct {
	// Dir holds everything of the node. It must not lie below /run, /var/lib or /var/log, which the node has of its own.
	Dir string
	// Path and Env are for the programs of the node.
	Path, Env []string
	// Keep lets the node outlive this process. It ends by Down, or with the host.
	Keep bool
}

// gates are held open as long as this process lives: a file that nobody names any more is closed, and its node would end.
var gates sync.Map

// Up makes a node and waits until its first process takes orders.
func Up(ctx context.Context, o Options) (_ *Node, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a node needs root: it has namespaces, mounts and cgroups")
	}
	for _, own := range []string{"/run/", "/var/lib/", "/var/log/", "/proc/", "/sys/"} {
		if strings.HasPrefix(o.Dir+"/", own) {
			return nil, fmt.Errorf("%s lies below %s, which the node has of its own", o.Dir, own)
		}
	}
	n := &Node{Dir: o.Dir, Path: o.Path, Env: o.Env, Keep: o.Keep}
	gate, err := n.spawn()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w\n%s", err, n.log()), n.Down(context.WithoutCancel(ctx)))
		}
	}()
	if n.Since, err = startOf(n.PID); err != nil {
		return nil, err
	}
	if n.Cgroups, err = makeGroups("sandtrail-node-" + strings.ToLower(rand.Text()[:8])); err != nil {
		return nil, err
	}
	if err = enterGroups(n.Cgroups, n.PID); err != nil {
		return nil, err
	}
	if err = n.join(); err != nil {
		return nil, err
	}
	if err = n.write(); err != nil {
		return nil, err
	}
	if _, err = gate.WriteString("."); err != nil {
		return nil, err
	}
	if o.Keep {
		_ = gate.Close()
	} else {
		gates.Store(n.PID, gate)
	}
	if err = n.answers(ctx); err != nil {
		return nil, err
	}
	return n, n.route()
}

// spawn starts the first process, which waits at a gate: a byte opens it. Unless the node is kept, the end of the gate is the end of the node.
func (n *Node) spawn() (gate *os.File, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	log, err := os.Create(filepath.Join(n.Dir, "node.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", n.Dir)
	cmd.Args[0] = argvFirst
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", log, log, []*os.File{read}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make the node's namespaces: %w", err)
	}
	n.PID = cmd.Process.Pid
	go func() { _ = cmd.Wait() }()
	return write, nil
}

func (n *Node) log() string {
	text, err := os.ReadFile(filepath.Join(n.Dir, "node.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// answers waits until the first process takes orders.
func (n *Node) answers(ctx context.Context) error {
	remote := process.Dial(n.Socket())
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := remote.Status(ctx)
		if err == nil {
			return nil
		}
		if !n.alive() {
			return errors.New("the node's first process ended")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// Down ends a node and waits until nothing of it is left but its directory. It may be repeated.
func (n *Node) Down(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if gate, ok := gates.LoadAndDelete(n.PID); ok {
		_ = gate.(*os.File).Close()
	}
	if n.alive() {
		if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
			return fmt.Errorf("end the node: %w", err)
		}
	}
	if err := removeGroups(ctx, n.Cgroups); err != nil {
		return err
	}
	return n.parted(ctx)
}

// parted waits until the kernel has taken the link away, which it does some time after the last process of the namespace ended.
func (n *Node) parted(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n.Link != "" {
		link, err := netlink.LinkByName(n.Link)
		var none netlink.LinkNotFoundError
		if errors.As(err, &none) {
			return nil
		}
		// Where the node never started nobody else takes it away.
		if err == nil && !n.alive() {
			_ = netlink.LinkDel(link)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is still there: %w", n.Link, ctx.Err())
		}
	}
	return nil
}
