package grpcapi

import (
	"context"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

func (s *Server) ReadFile(ctx context.Context, req *computev1.ReadFileRequest) (*computev1.ReadFileResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	data, size, eof, err := s.use.ReadFile(ctx, p, req.GetSandboxId(), req.GetPath(), req.GetOffset(), req.GetMaxBytes())
	if err != nil {
		return nil, err
	}
	return &computev1.ReadFileResponse{Data: data, TotalSize: size, Eof: eof}, nil
}

func (s *Server) WriteFile(ctx context.Context, req *computev1.WriteFileRequest) (*computev1.WriteFileResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	w, err := s.use.WriteFile(ctx, p, first(ctx, headerIdempotency), req)
	if err != nil {
		return nil, err
	}
	return &computev1.WriteFileResponse{BytesWritten: w.Bytes, Size: w.Size, Sha256: w.SHA256}, nil
}

func (s *Server) ListFiles(ctx context.Context, req *computev1.ListFilesRequest) (*computev1.ListFilesResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	entries, truncated, err := s.use.ListFiles(ctx, p, req.GetSandboxId(), req.GetPath(), req.GetRecursive(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	res := &computev1.ListFilesResponse{Truncated: truncated}
	for _, f := range entries {
		res.Entries = append(res.Entries, &computev1.FileEntry{
			Path: f.GetPath(), Size: f.GetSize(), IsDir: f.GetIsDir(), Mode: f.GetMode(), ModifiedAt: f.GetModifiedAt(), LinkTarget: f.GetLinkTarget(),
		})
	}
	return res, nil
}
