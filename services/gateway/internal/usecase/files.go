package usecase

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

const (
	// partBytes is what travels in one request: it must fit a NATS message with its frame.
	partBytes = 512 << 10
	// MaxFileBytes is the most that one read or write moves.
	MaxFileBytes = 16 << 20
	// partWait bounds one part, wholeWait what may read a whole file or remove a whole directory; a call is bounded by its own deadline.
	partWait, wholeWait = 30 * time.Second, 130 * time.Second
)

// ReadFile returns at most max bytes of a file from offset on (0: MaxFileBytes), its whole size, and whether the end was reached.
func (u *UseCases) ReadFile(ctx context.Context, p principal.Principal, id, path string, offset, limit int64) (data []byte, size int64, eof bool, err error) {
	if err := p.Need(scopes.Files); err != nil {
		return nil, 0, false, err
	}
	s, err := u.ready(ctx, p, id)
	if err != nil {
		return nil, 0, false, err
	}
	if limit == 0 {
		limit = MaxFileBytes
	}
	for {
		part := min(limit-int64(len(data)), partBytes)
		reply, err := u.fileCall(ctx, s, &commandsv1.FileCall{Call: &commandsv1.FileCall_Read{
			Read: &commandsv1.ReadPart{Path: path, Offset: offset + int64(len(data)), MaxBytes: part},
		}})
		if err != nil {
			return nil, 0, false, err
		}
		data = append(data, reply.GetData()...)
		if reply.GetEof() || len(reply.GetData()) == 0 || int64(len(data)) >= limit {
			return data, reply.GetTotalSize(), reply.GetEof(), nil
		}
	}
}

// Written is what a write has done.
type Written struct {
	// Bytes that were written, and the size of the whole file afterwards.
	Bytes, Size int64
	// SHA256 of the bytes that were written, as they were found in the workspace.
	SHA256 []byte
}

// WriteFile puts data into a file and returns what was written once it is there. The file changes at once: readers see the old or
// the new one. Repeated with the same key it answers again and writes nothing.
func (u *UseCases) WriteFile(ctx context.Context, p principal.Principal, key string, req *computev1.WriteFileRequest) (Written, error) {
	if err := p.Need(scopes.Files); err != nil {
		return Written{}, err
	}
	s, err := u.locate(ctx, p, req.GetSandboxId())
	if err != nil {
		return Written{}, err
	}
	if req.GetUploadId() != "" {
		return u.upload(ctx, s, req)
	}
	bad := map[string]string{}
	for field, given := range map[string]bool{"offset": req.GetOffset() != 0, "last": req.GetLast(), "abort": req.GetAbort()} {
		if given {
			bad[field] = "needs upload_id"
		}
	}
	if len(bad) > 0 {
		return Written{}, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").WithFields(bad)
	}
	c, err := u.claim(ctx, s.Tenant, "WriteFile", key, p.Actor, req)
	if err != nil {
		return Written{}, err
	}
	upload := c.id()
	return u.once(ctx, c, func(ctx context.Context) (done Written, err error) {
		s, err := u.running(ctx, s)
		if err != nil {
			return Written{}, err
		}
		if c.repeated && len(req.GetData()) > partBytes {
			// An earlier call may have come to its end without telling. The toolbox knows an upload by its id and answers its last
			// part again; where it does not, the upload is sent from its beginning. (A write of one part is the same question.)
			offset := (len(req.GetData()) - 1) / partBytes * partBytes
			done, err := u.writePart(ctx, s, req, upload, offset)
			if code := fault.CodeOf(err); code != fault.FailedPrecondition && code != fault.InvalidArgument {
				return done, err
			}
		}
		for offset := 0; offset == 0 || offset < len(req.GetData()); offset += partBytes {
			if done, err = u.writePart(ctx, s, req, upload, offset); err != nil {
				return Written{}, err
			}
		}
		return done, nil
	})
}

// upload writes one part of a file that comes in several calls. It is the same part however often it comes, so that it needs no key. Until
// the last one there is nothing to tell but that it was taken.
func (u *UseCases) upload(ctx context.Context, s sandbox.Sandbox, req *computev1.WriteFileRequest) (Written, error) {
	data := req.GetData()
	switch {
	case req.GetAppend():
		return Written{}, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").
			WithFields(map[string]string{"append": "does not go with upload_id"})
	case req.GetOffset() > u.limits.MaxFileBytes-int64(len(data)):
		return Written{}, u.tooLarge()
	}
	s, err := u.running(ctx, s)
	if err != nil {
		return Written{}, err
	}
	for at := 0; ; at += partBytes {
		end := min(at+partBytes, len(data))
		last := req.GetLast() && end == len(data)
		reply, err := u.fileCall(ctx, s, &commandsv1.FileCall{Call: &commandsv1.FileCall_Write{Write: &commandsv1.WritePart{
			Path: req.GetPath(), UploadId: req.GetUploadId(), Offset: req.GetOffset() + int64(at), Data: data[at:end], Last: last, Mode: req.GetMode(), Abort: req.GetAbort(),
		}}})
		if fault.Is(err, fault.ReasonIllegalState) && req.GetLast() && !last {
			// An earlier call may have come to its end without telling: the toolbox answers the last part again.
			at = (len(data)-1)/partBytes*partBytes - partBytes
			continue
		}
		if err != nil {
			return Written{}, err
		}
		if end == len(data) || req.GetAbort() {
			return Written{Bytes: int64(len(data)), Size: reply.GetSize(), SHA256: reply.GetSha256()}, nil
		}
	}
}

// writePart sends the part of a file at offset. The part that reaches the end of the data is the last one, and gives what the
// whole write has done.
func (u *UseCases) writePart(ctx context.Context, s sandbox.Sandbox, req *computev1.WriteFileRequest, upload string, offset int) (Written, error) {
	end := min(offset+partBytes, len(req.GetData()))
	reply, err := u.fileCall(ctx, s, &commandsv1.FileCall{Call: &commandsv1.FileCall_Write{Write: &commandsv1.WritePart{
		Path: req.GetPath(), UploadId: upload, Offset: int64(offset), Data: req.GetData()[offset:end], Last: end == len(req.GetData()),
		Append: req.GetAppend(), Mode: req.GetMode(),
	}}})
	if err != nil {
		return Written{}, err
	}
	return Written{Bytes: int64(len(req.GetData())), Size: reply.GetSize(), SHA256: reply.GetSha256()}, nil
}

// ListFiles lists a directory of the workspace; truncated says that there was more than limit (0: 1,000).
func (u *UseCases) ListFiles(ctx context.Context, p principal.Principal, id, path string, recursive bool, limit uint32) ([]*commandsv1.FileInfo, bool, error) {
	if err := p.Need(scopes.Files); err != nil {
		return nil, false, err
	}
	s, err := u.ready(ctx, p, id)
	if err != nil {
		return nil, false, err
	}
	if limit == 0 {
		limit = 1000
	}
	reply, err := u.fileCall(ctx, s, &commandsv1.FileCall{Call: &commandsv1.FileCall_List{
		List: &commandsv1.ListCall{Path: path, Recursive: recursive, MaxEntries: limit},
	}})
	return reply.GetEntries(), reply.GetTruncated(), err
}

func (u *UseCases) ready(ctx context.Context, p principal.Principal, id string) (sandbox.Sandbox, error) {
	s, err := u.locate(ctx, p, id)
	if err != nil {
		return s, err
	}
	return u.running(ctx, s)
}

func (u *UseCases) running(ctx context.Context, s sandbox.Sandbox) (sandbox.Sandbox, error) {
	if err := over(s); err != nil {
		return s, err
	}
	return u.waitReady(ctx, s)
}

func (u *UseCases) fileCall(ctx context.Context, s sandbox.Sandbox, call *commandsv1.FileCall) (_ *commandsv1.FileReply, err error) {
	ctx, end := span(ctx, "files.request", subject.Files(s.Worker, s.Tenant, s.ID), trace.SpanKindClient)
	defer func() { end(err) }()
	call.TenantId, call.SandboxId = s.Tenant, s.ID
	if call.GetStats() == nil { // to ask what it costs is no use
		done, err := u.using(ctx, s)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	data, err := proto.Marshal(call)
	if err != nil {
		return nil, fault.From(err)
	}
	m := nats.NewMsg(subject.Files(s.Worker, s.Tenant, s.ID))
	m.Data = data
	telemetry.Inject(ctx, m.Header)
	wait := partWait
	if call.GetStat().GetDigest() || call.GetWrite().GetLast() || call.GetDelete().GetRecursive() {
		wait = wholeWait
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	answer, err := u.nc.RequestMsgWithContext(ctx, m)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "the sandbox's worker does not answer; try again").WithRetry(2 * time.Second)
	case errors.Is(err, context.Canceled):
		return nil, fault.New(fault.Cancelled, fault.ReasonCancelled, "the call was cancelled").Because(err)
	case err != nil:
		return nil, fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "the sandbox's worker did not answer in time; try again").
			WithRetry(2 * time.Second).Because(err)
	}
	reply := &commandsv1.FileReply{}
	if err := proto.Unmarshal(answer.Data, reply); err != nil {
		return nil, fault.From(err)
	}
	if reply.GetError() != nil {
		return nil, fault.FromDetail(reply.GetError())
	}
	return reply, nil
}
