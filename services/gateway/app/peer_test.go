package app_test

import (
	"context"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// peer stands for lifecycle and exec: it takes commands, appends what they lead to by the domain's own decisions, stores output and
// answers file calls, and does with execs what a test scripts.
type peer struct {
	w   *world
	log *jslog.Log
	nc  *nats.Conn

	mu sync.Mutex
	// scripts by command; "true" completes at once.
	scripts map[string]func(*execution)
	// down: commands are not taken.
	down    bool
	running map[string]*execution
	files   map[string][]byte
	uploads map[string][]byte
	// dirs are the directories that there are below /workspace.
	dirs map[string]bool
	// appends counts writes that changed a file.
	appends int
	// onPart is called before each part of a write is taken; an error is its answer.
	onPart func(*commandsv1.WritePart) error
	// onRead is called before each read.
	onRead func(*commandsv1.ReadPart)
	// onUse is called before a use is recorded.
	onUse func()
	// answers replaces all that is below.
	answers func(*commandsv1.FileCall) *commandsv1.FileReply
	// listed: a list has what was written.
	listed bool
	// unsettled is what the files say of themselves; inputs are standard inputs by exec, closed those that are, typed how many
	// bytes they take at once.
	unsettled bool
	typed     int
	inputs    map[string][]byte
	closed    map[string]bool
	// onSignal is called for each signal to a command that runs.
	onSignal func(x *execution, number int32)
	// onCommand is called before a command of a sandbox is taken.
	onCommand func(*commandsv1.SandboxCommand)
	// commands that came, by subject.
	seen []string
	wg   sync.WaitGroup
}

func newPeer(w *world) *peer {
	p := &peer{
		w: w, log: jslog.New(w.JS), nc: w.NC, running: map[string]*execution{}, files: map[string][]byte{}, uploads: map[string][]byte{},
		dirs:   map[string]bool{},
		inputs: map[string][]byte{}, closed: map[string]bool{},
		scripts: map[string]func(*execution){"true": func(x *execution) { x.complete(0) }, "wait": func(*execution) {}},
	}
	for filter, handle := range map[string]nats.MsgHandler{
		subject.Commands: p.command, subject.FilesOf(natstest.Worker): p.file,
	} {
		sub, err := p.nc.Subscribe(filter, func(m *nats.Msg) { p.wg.Go(func() { handle(m) }) })
		require.NoError(w.t, err)
		w.t.Cleanup(func() {
			_ = sub.Unsubscribe()
			p.wg.Wait()
		})
	}
	return p
}

func (p *peer) script(command string, run func(*execution)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scripts[command] = run
}

func (p *peer) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *peer) get(look func() int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return look()
}

// count is how many commands came whose subject has a prefix.
func (p *peer) count(prefix string) int {
	return p.get(func() (n int) {
		for _, s := range p.seen {
			if strings.HasPrefix(s, prefix) {
				n++
			}
		}
		return n
	})
}

func (p *peer) command(m *nats.Msg) {
	p.mu.Lock()
	p.seen = append(p.seen, m.Subject)
	down := p.down
	p.mu.Unlock()
	if down {
		return
	}
	if strings.HasPrefix(m.Subject, "cmd.exec.") {
		c := &commandsv1.ExecCommand{}
		if proto.Unmarshal(m.Data, c) == nil {
			p.answer(c.GetReplyTo(), p.execCommand(c))
		}
		return
	}
	c := &commandsv1.SandboxCommand{}
	if proto.Unmarshal(m.Data, c) == nil && c.GetCommand() != nil {
		p.mu.Lock()
		wait := p.onCommand
		p.mu.Unlock()
		if wait != nil {
			wait(c)
		}
		p.answer(c.GetReplyTo(), p.sandboxCommand(c))
	}
}

func (p *peer) answer(to string, err error) {
	o := &commandsv1.Outcome{}
	if err != nil {
		o.Error, _ = fault.Detail(err)
	}
	data, _ := proto.Marshal(o)
	_ = p.nc.Publish(to, data)
}

func (p *peer) sandboxCommand(c *commandsv1.SandboxCommand) error {
	do := func(id string, cmd sandbox.Command) error { return p.decide(c, id, cmd) }
	if c.GetDestroy() != nil {
		if err := do(c.GetCommandId(), sandbox.Destroy{Reason: c.GetDestroy().GetReason()}); err != nil {
			return err
		}
		if err := do(ids.New(), sandbox.MarkDestroyed{At: time.Now(), DeleteAfter: time.Now().Add(time.Hour)}); err != nil {
			return err
		}
		s, err := p.load(c.GetTenantId(), c.GetSandboxId())
		if err != nil || s.Name == "" {
			return err
		}
		return p.name(c, s.Name, sandbox.ReleaseName{Name: s.Name, Sandbox: s.ID})
	}
	if c.GetExtend() != nil {
		return do(c.GetCommandId(), sandbox.Extend{At: time.Now(), ExpiresAt: c.GetExtend().GetExpiresAt().AsTime()})
	}
	if c.GetLabel() != nil {
		return do(c.GetCommandId(), sandbox.Label{Labels: c.GetLabel().GetLabels()})
	}
	if c.GetEgress() != nil {
		return do(c.GetCommandId(), sandbox.SetEgress{Egress: c.GetEgress().GetEgress()})
	}
	if c.GetStop() != nil || c.GetStart() != nil {
		return p.turn(c, do)
	}
	if c.GetSnapshot() != nil {
		return p.snapshot(c, do)
	}
	if c.GetUse() != nil {
		p.mu.Lock()
		hook := p.onUse
		p.mu.Unlock()
		if hook != nil {
			hook()
		}
		if err := do(c.GetCommandId(), sandbox.Use{At: time.Now()}); err != nil {
			return err
		}
		if s, err := p.load(c.GetTenantId(), c.GetSandboxId()); err != nil || s.Ending() {
			return fault.New(fault.FailedPrecondition, fault.ReasonSandboxDestroyed, "the sandbox was destroyed")
		}
		return nil
	}
	req := c.GetCreate()
	if name := req.GetName(); name != "" {
		if err := p.name(c, name, sandbox.ReserveName{Name: name, Sandbox: c.GetSandboxId()}); err != nil {
			return err
		}
	}
	if req.GetImage() == "refused" {
		return fault.New(fault.ResourceExhausted, fault.ReasonQuota, "the quota of sandboxes is used up").WithQuota("sandboxes")
	}
	err := do(c.GetCommandId(), sandbox.Create{
		CommandID: c.GetCommandId(), At: time.Now(), SandboxID: c.GetSandboxId(), SessionID: req.GetSessionId(), OrgID: req.GetOrgId(),
		Image: req.GetImage(), Workspace: req.GetWorkspace(), Limits: req.GetLimits(), EnvKeys: req.GetEnvKeys(), Egress: req.GetEgress(), Labels: req.GetLabels(),
		Placement: &eventsv1.Placement{Worker: natstest.Worker}, Name: req.GetName(), Region: req.GetAskedRegion(), Provider: req.GetProvider(),
		InstanceType: req.GetInstanceType(),
	})
	if err != nil || req.GetImage() == "slow" {
		return err
	}
	if err := do(ids.Derive(c.GetCommandId(), "start"), sandbox.Start{Worker: natstest.Worker, Attempt: 1}); err != nil {
		return nil //nolint:nilerr // another copy of the command is further
	}
	_ = do(ids.Derive(c.GetCommandId(), "ready"), sandbox.MarkReady{Worker: natstest.Worker, Hostname: "h", RuntimeID: "r", ImageDigest: "d"})
	return nil
}

// decide records what a command leads to for the sandbox of another.
func (p *peer) decide(c *commandsv1.SandboxCommand, id string, cmd sandbox.Command) error {
	meta := sandbox.CommandMeta{ID: id, Actor: c.GetActor(), Correlation: c.GetCorrelationId(), Time: time.Now(), Tenant: c.GetTenantId()}
	_, err := eventlog.Execute(context.Background(), p.log, subject.Sandbox(c.GetTenantId(), c.GetSandboxId()), func(h eventlog.History) ([]envelope.Event, error) {
		s, err := sandbox.Fold(h)
		if err != nil {
			return nil, err
		}
		bodies, err := sandbox.Decide(s, cmd)
		return sandbox.Events(meta, bodies...), err
	})
	return err
}

func (p *peer) load(tenant, id string) (sandbox.Sandbox, error) {
	h, err := p.log.Load(context.Background(), subject.Sandbox(tenant, id))
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return sandbox.Fold(h)
}

// name decides about a name and appends.
func (p *peer) name(c *commandsv1.SandboxCommand, name string, cmd sandbox.NameCommand) error {
	meta := sandbox.CommandMeta{ID: ids.New(), Actor: c.GetActor(), Time: time.Now(), Tenant: c.GetTenantId()}
	_, err := eventlog.Execute(context.Background(), p.log, subject.Name(c.GetTenantId(), sandbox.NameID(name)), func(h eventlog.History) ([]envelope.Event, error) {
		n, err := sandbox.FoldName(h)
		if err != nil {
			return nil, err
		}
		bodies, err := sandbox.DecideName(n, cmd)
		return sandbox.Events(meta, bodies...), err
	})
	return err
}

func (p *peer) execCommand(c *commandsv1.ExecCommand) error {
	agg := subject.Exec(c.GetTenantId(), c.GetSandboxId(), c.GetExecId())
	if c.GetCancel() != nil {
		p.mu.Lock()
		x := p.running[agg.ID]
		p.mu.Unlock()
		if x == nil {
			return fault.New(fault.NotFound, fault.ReasonExecNotFound, "there is no such exec")
		}
		x.do(c.GetCommandId(), sandbox.RequestCancel{Reason: c.GetCancel().GetReason()})
		x.end(&eventsv1.ExecCompleted{Reason: sandbox.ReasonCancelled, ExitCode: 137, Signal: 9})
		return nil
	}
	command := c.GetStart().GetSpec().GetCommand()
	if command == "refused" {
		return fault.New(fault.ResourceExhausted, fault.ReasonTooManyExecs, "too many commands at once")
	}
	p.mu.Lock()
	x, again := p.running[agg.ID]
	if !again {
		x = &execution{p: p, agg: agg, cmd: c}
		p.running[agg.ID] = x
	}
	run := p.scripts[command]
	p.mu.Unlock()
	x.begin.Do(func() {
		x.do(c.GetCommandId(), sandbox.StartExec{
			CommandID: c.GetCommandId(), SandboxID: agg.Sandbox, ExecID: agg.ID, Spec: c.GetStart().GetSpec(), Worker: natstest.Worker, RequestedAt: time.Now(),
		})
	})
	if !again {
		p.wg.Go(func() { run(x) })
	}
	return nil
}

// execution is one exec that a script runs.
type execution struct {
	p     *peer
	agg   subject.Aggregate
	cmd   *commandsv1.ExecCommand
	begin sync.Once

	mu       sync.Mutex
	number   uint64
	out, err uint64
}

func (x *execution) do(id string, cmd sandbox.ExecCommand) {
	meta := sandbox.CommandMeta{ID: id, Actor: "test", Time: time.Now(), Tenant: x.agg.Tenant}
	_, err := eventlog.Execute(context.Background(), x.p.log, x.agg, func(h eventlog.History) ([]envelope.Event, error) {
		s, err := sandbox.FoldExec(h)
		if err != nil {
			return nil, err
		}
		bodies, err := sandbox.DecideExec(s, cmd)
		return sandbox.Events(meta, bodies...), err
	})
	if err != nil {
		x.p.w.t.Error(err)
	}
}

// write stores one chunk and returns its message as the server would repeat it.
func (x *execution) write(stream string, data []byte) *nats.Msg {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.number++
	c := chunks.Chunk{Number: x.number, Stream: stream, Data: data, Time: time.Now()}
	if stream == chunks.Stdout {
		c.Offset = x.out
		x.out += uint64(len(data))
	} else {
		c.Offset = x.err
		x.err += uint64(len(data))
	}
	c.StdoutEnd, c.StderrEnd = x.out, x.err
	return x.store(c)
}

func (x *execution) store(c chunks.Chunk) *nats.Msg {
	m := chunks.Encode(subject.Output(x.agg.Tenant, x.agg.Sandbox, x.agg.ID), c)
	ack, err := x.p.w.JS.PublishMsg(context.Background(), m, jetstream.WithRetryAttempts(50))
	if err != nil {
		x.p.w.t.Error(err)
		return nil
	}
	live := nats.NewMsg(subject.Live(m.Subject))
	c.Seq = ack.Sequence
	live.Header, live.Data = m.Header, m.Data
	live.Header.Set(jetstream.SequenceHeader, uintText(ack.Sequence))
	return live
}

func (x *execution) complete(code int32) {
	x.end(&eventsv1.ExecCompleted{ExitCode: code, Reason: sandbox.ReasonExited})
}

func (x *execution) end(c *eventsv1.ExecCompleted) {
	x.mu.Lock()
	c.LastChunk = x.number
	x.mu.Unlock()
	x.do(sandbox.EndCommand(x.agg.ID), sandbox.CompleteExec{Completed: c})
}

func (x *execution) lose() {
	x.do(sandbox.EndCommand(x.agg.ID), sandbox.LoseExec{Lost: &eventsv1.ExecLost{
		Reason: string(fault.ReasonSandboxLost), Message: "its worker is gone", LastChunk: x.number,
	}})
}

func (p *peer) file(m *nats.Msg) {
	c := &commandsv1.FileCall{}
	if proto.Unmarshal(m.Data, c) != nil {
		return
	}
	reply, err := p.fileCall(c)
	if err != nil {
		reply = &commandsv1.FileReply{}
		reply.Error, _ = fault.Detail(err)
	}
	data, _ := proto.Marshal(reply)
	_ = m.Respond(data)
}

func (p *peer) fileCall(c *commandsv1.FileCall) (*commandsv1.FileReply, error) {
	if w := c.GetWrite(); w != nil {
		p.mu.Lock()
		hook := p.onPart
		p.mu.Unlock()
		if hook != nil {
			if err := hook(w); err != nil {
				return nil, err
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers != nil {
		return p.answers(c), nil
	}
	switch call := c.GetCall().(type) {
	case *commandsv1.FileCall_Stat, *commandsv1.FileCall_Delete, *commandsv1.FileCall_Stdin, *commandsv1.FileCall_Resize, *commandsv1.FileCall_Signal:
		return p.moreFiles(c)
	case *commandsv1.FileCall_Read:
		if p.onRead != nil {
			p.onRead(call.Read)
		}
		all := p.files[call.Read.GetPath()]
		from := min(call.Read.GetOffset(), int64(len(all)))
		to := min(from+call.Read.GetMaxBytes(), int64(len(all)))
		return &commandsv1.FileReply{
			Data: all[from:to], TotalSize: int64(len(all)), Eof: to == int64(len(all)), Version: p.version(call.Read.GetPath()), Unsettled: p.unsettled,
		}, nil
	case *commandsv1.FileCall_Write:
		return p.write(call.Write)
	case *commandsv1.FileCall_List:
		if dir := call.List.GetPath(); strings.HasPrefix(dir, "/workspace/") && !p.dirs[dir] {
			return nil, fault.New(fault.NotFound, fault.ReasonPathNotFound, "there is no such directory")
		}
		return p.list(call.List), nil
	default:
		return &commandsv1.FileReply{Usage: &commonv1.UsageMetrics{CpuMs: 7}}, nil
	}
}

// done is the answer to the last part of an upload.
func (p *peer) done(w *commandsv1.WritePart, upload []byte) *commandsv1.FileReply {
	sum := sha256.Sum256(upload)
	return &commandsv1.FileReply{BytesWritten: int64(len(upload)), Size: int64(len(p.files[w.GetPath()])), Sha256: sum[:]}
}

// write keeps the rules of the toolbox: parts of an upload in order, the last one changes the file and may be repeated.
func (p *peer) write(w *commandsv1.WritePart) (*commandsv1.FileReply, error) {
	const done = "done "
	if w.GetAbort() {
		delete(p.uploads, w.GetUploadId())
		return &commandsv1.FileReply{}, nil
	}
	if old, ok := p.uploads[done+w.GetFinishId()]; ok && w.GetLast() && w.GetFinishId() != "" {
		delete(p.uploads, w.GetUploadId())
		return p.done(w, old), nil
	}
	parts, known := p.uploads[w.GetUploadId()]
	if size := w.GetOffset() + int64(len(w.GetData())); w.GetLast() && !known {
		if old, ok := p.uploads[done+w.GetUploadId()]; ok && int64(len(old)) == size {
			return p.done(w, old), nil
		}
	}
	if !known && w.GetOffset() > 0 {
		return nil, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "the upload is not known")
	}
	if w.GetOffset() > int64(len(parts)) {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "parts must come in order")
	}
	parts = append(parts[:w.GetOffset():w.GetOffset()], w.GetData()...)
	p.uploads[w.GetUploadId()] = parts
	if w.GetLast() {
		delete(p.uploads, w.GetUploadId())
		p.uploads[done+w.GetUploadId()] = parts
		if w.GetFinishId() != "" {
			p.uploads[done+w.GetFinishId()] = parts
		}
		if w.GetAppend() {
			p.files[w.GetPath()] = append(p.files[w.GetPath()], parts...)
		} else {
			p.files[w.GetPath()] = parts
		}
		p.appends++
		return p.done(w, parts), nil
	}
	return &commandsv1.FileReply{BytesWritten: int64(len(parts))}, nil
}
