package powerloss

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/sandtrail/sandtrail/libs/natsserver"
)

// nodeVariable holds the options of a server for a process that is to be one.
const nodeVariable = "SANDTRAIL_POWERLOSS_NODE"

// Serve makes this process a server where it was started as one, and tells whether it was. The program that calls Start must call
// it before anything else.
func Serve() bool {
	options, ok := os.LookupEnv(nodeVariable)
	if !ok {
		return false
	}
	if err := serve(options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func serve(options string) error {
	var o natsserver.Options
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return err
	}
	s, err := natsserver.Start(o)
	if err != nil {
		return err
	}
	defer s.Shutdown()
	fmt.Fprintln(os.Stdout, s.URL())
	// Each line asks for a flush and is answered when it is done; who asks ends this process by SIGKILL.
	asked := bufio.NewScanner(os.Stdin)
	for asked.Scan() {
		if err := s.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, "flushed")
	}
	select {}
}

// Node is a NATS server as a process of its own, with its store on a disk whose power can be cut.
type Node struct {
	Disk *Disk
	URL  string

	options natsserver.Options
	cmd     *exec.Cmd
	ask     io.Writer
	answers *bufio.Reader
}

// Start starts a server with its store on the disk; the options' Dir is ignored.
func Start(d *Disk, o natsserver.Options) (*Node, error) {
	o.Dir = d.Dir + "/nats"
	n := &Node{Disk: d, options: o}
	return n, n.start()
}

func (n *Node) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	options, err := json.Marshal(n.options)
	if err != nil {
		return err
	}
	n.cmd = exec.Command(self)
	n.cmd.Env = append(os.Environ(), nodeVariable+"="+string(options))
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	n.cmd.Stderr = &said
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if n.ask, err = n.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := n.cmd.Start(); err != nil {
		return err
	}
	n.answers = bufio.NewReader(out)
	line, err := n.answers.ReadString('\n')
	if err != nil {
		return errors.Join(fmt.Errorf("the server did not start: %s", said.String()), n.cmd.Wait())
	}
	n.URL = strings.TrimSpace(line)
	return nil
}

// Flush is natsserver's Flush in that process.
func (n *Node) Flush() error {
	if _, err := io.WriteString(n.ask, "flush\n"); err != nil {
		return err
	}
	_, err := n.answers.ReadString('\n')
	return err
}

// Kill ends the process at once, as the loss of power does.
func (n *Node) Kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

// Revive brings the disk back as it was left and starts the server on it.
func (n *Node) Revive() error {
	if err := n.Disk.Revive(); err != nil {
		return err
	}
	return n.start()
}

// Replace starts the server with an empty disk: everything that it had is lost.
func (n *Node) Replace() error {
	if err := n.Disk.Unmount(); err != nil {
		return err
	}
	if err := run("mkfs.ext4", "-q", "-F", n.Disk.image); err != nil {
		return err
	}
	if err := n.Disk.Mount(); err != nil {
		return err
	}
	return n.start()
}
