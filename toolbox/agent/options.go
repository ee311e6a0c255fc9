package agent

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Options of an agent.
type Options struct {
	// Listen is host:port, the host mostly empty.
	Listen string
	// Name and UID are what the cluster calls the agent's pod: calls that are meant for another one are refused.
	Name, UID string
	// ClientCA are PEM certificates: who shows a certificate that one of them signed may call.
	ClientCA string
	// SandboxID may be empty: then a Configure call brings it, with the environment, and nothing is started before.
	SandboxID string
	// State is a directory for output; empty: memory.
	State string
	// Workspace is its directory, MountPath the name that callers know it by (the directory).
	Workspace, MountPath string
	// Env are the image's variables.
	Env []string
	// MaxExecs at once (32), OutputCap bytes kept of each output stream (4 MiB), HoldBytes that a program may be ahead of its reader
	// (1 MiB), SpoolBytes of all output together (64 MiB): the oldest ended outputs give way, then what comes is dropped.
	MaxExecs                         int
	OutputCap, HoldBytes, SpoolBytes uint64
	// Processes and threads that programs may have, 0: no bound. MemoryBytes that all together may use before the largest program is
	// ended, 0: no bound.
	Processes, MemoryBytes uint64
	// ObeyTERM makes TERM a Shutdown. A program can send it too.
	ObeyTERM bool
	// AllowLocal takes connections from the agent's own address too, which are those of programs.
	AllowLocal bool
}

func parse(args []string) (Options, error) {
	var o Options
	f := flag.NewFlagSet("toolbox agent", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.Listen, "listen", ":7070", "address to answer on")
	f.StringVar(&o.Name, "pod-name", "", "name of the pod")
	f.StringVar(&o.UID, "pod-uid", "", "uid of the pod")
	f.StringVar(&o.ClientCA, "client-ca", "", "certificates of those who sign callers' certificates, PEM")
	caFile := f.String("client-ca-file", "", "file with the same")
	f.StringVar(&o.SandboxID, "sandbox-id", "", "id of the sandbox; without it nothing is started before a Configure call")
	f.StringVar(&o.State, "state", "", "directory for output, in files without a name; without it, or where it has none, memory")
	f.StringVar(&o.Workspace, "workspace", "/workspace", "directory of the workspace")
	f.StringVar(&o.MountPath, "mount-path", "", "name that callers know the workspace by")
	f.IntVar(&o.MaxExecs, "max-execs", 32, "programs at once")
	f.Uint64Var(&o.OutputCap, "output-cap", 4<<20, "bytes kept of each output stream")
	f.Uint64Var(&o.HoldBytes, "hold-bytes", 1<<20, "bytes that a program may be ahead of its reader")
	f.Uint64Var(&o.SpoolBytes, "spool-bytes", 64<<20, "bytes kept of all output, in memory")
	f.Uint64Var(&o.Processes, "processes", 0, "processes and threads that programs may have")
	f.Uint64Var(&o.MemoryBytes, "memory-bytes", 0, "bytes of memory before the largest program is ended")
	f.BoolVar(&o.ObeyTERM, "obey-term", false, "end the sandbox in order on TERM, whoever sends it")
	f.BoolVar(&o.AllowLocal, "allow-local", false, "take connections from the own address, for tests")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if *caFile != "" {
		b, err := os.ReadFile(*caFile)
		if err != nil {
			return o, fmt.Errorf("read the certificates of callers: %w", err)
		}
		o.ClientCA += string(b)
	}
	if o.MountPath == "" {
		o.MountPath = o.Workspace
	}
	return o, o.validate()
}

// validate reports every mistake at once.
func (o Options) validate() error {
	var errs []error
	check := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	check(o.Name != "" && o.UID != "", "pod-name and pod-uid are needed")
	check(o.ClientCA != "", "client-ca is needed")
	check(filepath.IsAbs(o.Workspace), "workspace must be absolute")
	check(o.MaxExecs > 0, "max-execs must be positive")
	check(o.SpoolBytes >= 2*o.OutputCap, "spool-bytes must be at least twice output-cap")
	return errors.Join(errs...)
}

// handshakeTimeout is how long a caller may take to prove itself.
const handshakeTimeout = 5 * time.Second
