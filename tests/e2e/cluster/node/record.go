package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Name is the node's name in the cluster, and the hostname in its namespaces.
const Name = "sandtrail-node"

// Node is the namespaces of a node that runs. Its fields are written to its directory, so that another process finds it.
type Node struct {
	Dir string `json:"dir"`
	// PID is of the first process of the namespaces, as the host sees it, and Since when it started, in the kernel's ticks.
	PID   int    `json:"pid"`
	Since string `json:"since"`
	// Link is the host's end of the pair of interfaces that joins host and node.
	Link string `json:"link"`
	// HostAddress is the host's address on that link, Address the node's. Pods and Services are the networks behind the node.
	HostAddress netip.Addr   `json:"host_address"`
	Address     netip.Addr   `json:"address"`
	Pods        netip.Prefix `json:"pods"`
	Services    netip.Prefix `json:"services"`
	// Cgroups are the node's groups on the host, by what they are called in /proc/self/cgroup; the one of version 2 is "".
	Cgroups map[string]string `json:"cgroups"`
	// Path and Env are what the programs of the node get.
	Path []string `json:"path"`
	Env  []string `json:"env"`
	// Keep says that the node outlives the process that made it.
	Keep bool `json:"keep"`
}

// Socket is where the node's first process takes orders.
func (n *Node) Socket() string { return filepath.Join(n.Dir, "node.sock") }

func recordFile(dir string) string { return filepath.Join(dir, "node.json") }

func (n *Node) write() error {
	text, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(recordFile(n.Dir), text, 0o600)
}

func read(dir string) (*Node, error) {
	text, err := os.ReadFile(recordFile(dir))
	if err != nil {
		return nil, err
	}
	var n Node
	return &n, json.Unmarshal(text, &n)
}

// ErrNotRunning says that a directory holds no node that runs.
var ErrNotRunning = errors.New("no node runs there")

// Open finds the node of a directory.
func Open(dir string) (*Node, error) {
	n, err := read(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, err
	}
	if !n.alive() {
		return n, ErrNotRunning
	}
	return n, nil
}

func (n *Node) alive() bool {
	since, err := startOf(n.PID)
	return err == nil && since == n.Since
}

// startOf is when a process started, which tells it from another that got its number; an error when there is none or it is a zombie.
func startOf(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The name in parentheses may hold spaces: fields count from the last one. State is the first behind it, the start the twentieth.
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" {
		return "", fmt.Errorf("process %d is gone", pid)
	}
	return fields[19], nil
}
