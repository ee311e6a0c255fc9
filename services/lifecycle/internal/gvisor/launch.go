package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// keeperEnv marks a keeper with its place's mark, so that it can be found by the kernel's own record of it whatever was or was
// not yet written to disk.
const keeperEnv = "SANDTRAIL_KEEPER="

// launch starts a keeper that does not depend on this process: a session and namespaces of its own, and no descriptor of
// ours but the two pipes of the handshake. It returns the keeper's answer, or an error when none came in time; what was started
// then is for the caller to remove.
func (d *Driver) launch(ctx context.Context, mark string, spec launch.Spec) (launch.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, d.o.StartTimeout)
	defer cancel()
	input, err := json.Marshal(spec)
	if err != nil {
		return launch.Result{}, runtimeFault("the sandbox could not be described", err)
	}
	log, err := os.OpenFile(filepath.Join(spec.Dir, logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return launch.Result{}, runtimeFault("the worker's state directory cannot be written", err)
	}
	defer log.Close()
	answer, out, err := os.Pipe()
	if err != nil {
		return launch.Result{}, runtimeFault("the worker has no free descriptors", err)
	}
	defer answer.Close()
	cmd := exec.Command(d.o.Toolbox, "keeper")
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", keeperEnv + mark}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), out, log
	cmd.SysProcAttr = launch.Attributes(d.rootless)
	err = cmd.Start()
	_ = out.Close()
	// ENOSPC: no more user namespaces are allowed.
	if errors.Is(err, syscall.EPERM) || d.rootless && errors.Is(err, syscall.ENOSPC) {
		return launch.Result{}, fault.New(fault.FailedPrecondition, fault.ReasonRuntimeFailed, "the worker may not start sandboxes: run it as root, or allow it user namespaces").Because(err)
	}
	if err != nil {
		return launch.Result{}, runtimeFault("the keeper could not be started", err)
	}
	// Taken when it ends, however long that is, so that it does not stay as a zombie.
	go func() { _ = cmd.Wait() }()
	return readAnswer(ctx, answer)
}

// maxAnswer bounds a keeper's answer.
const maxAnswer = 64 << 10

func readAnswer(ctx context.Context, from *os.File) (launch.Result, error) {
	stop := context.AfterFunc(ctx, func() { _ = from.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var r launch.Result
	err := json.NewDecoder(io.LimitReader(from, maxAnswer)).Decode(&r)
	switch {
	case err == nil:
		return r, nil
	case ctx.Err() != nil:
		return r, startDeadline(ctx.Err())
	}
	return r, runtimeFault("the keeper ended before the sandbox was ready", err)
}

func startDeadline(cause error) error {
	return fault.New(fault.DeadlineExceeded, fault.ReasonStartDeadline, "the sandbox did not start in time").WithRetry(time.Second).Because(cause)
}
