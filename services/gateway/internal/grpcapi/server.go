// Package grpcapi is compute.v1.ComputeService: it turns messages into use cases and back, and nothing else.
package grpcapi

import (
	"fmt"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/sandtrail/sandtrail/libs/outputcodec"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// Server implements compute.v1.ComputeService.
type Server struct {
	computev1.UnsafeComputeServiceServer
	use *usecase.UseCases
}

var _ computev1.ComputeServiceServer = (*Server)(nil)

const (
	// maxMessage lets a file of 16 MiB and its frame through.
	maxMessage = 17 << 20
	// maxReceived is what is read of a request to refuse it with details. gRPC refuses what is larger by itself and without.
	maxReceived = 32 << 20
	// writeBuffer is how many bytes go to the kernel at once; a connection has one only while it writes.
	writeBuffer = 128 << 10
	// maxStreams a client may have open on one connection.
	maxStreams = 10_000
	// maxHead bounds the metadata of a call, in bytes.
	maxHead = 32 << 10
	// openTime is how long a client may take to open a connection, its TLS handshake included.
	openTime = 10 * time.Second
)

// New makes the gRPC server with everything around it: the edge, deadlines, recovery, metrics, health and reflection; probes say how soon
// a vanished client is noticed; traces by the option Traced, TLS by grpc.Creds. The health server says SERVING once told so.
func New(
	use *usecase.UseCases, around *edge.Edge, probes keepalive.ServerParameters, registry prometheus.Registerer, options ...grpc.ServerOption,
) (*grpc.Server, *health.Server, error) {
	metrics := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram())
	if err := registry.Register(metrics); err != nil {
		return nil, nil, fmt.Errorf("register the metrics of gRPC: %w", err)
	}
	e := interceptors{around}
	recovered := recovery.WithRecoveryHandlerContext(e.Recovered)
	s := grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{outputcodec.New()}), grpc.WriteBufferSize(writeBuffer),
		grpc.MaxRecvMsgSize(maxReceived), grpc.MaxSendMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHead), grpc.ConnectionTimeout(openTime),
		grpc.KeepaliveParams(probes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(metrics.UnaryServerInterceptor(), e.unary, recovery.UnaryServerInterceptor(recovered)),
		grpc.ChainStreamInterceptor(metrics.StreamServerInterceptor(), e.stream, recovery.StreamServerInterceptor(recovered)),
	}, options...)...)
	computev1.RegisterComputeServiceServer(s, &Server{use: use})
	h := health.NewServer()
	h.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	healthv1.RegisterHealthServer(s, h)
	reflection.Register(s)
	metrics.InitializeMetrics(s)
	return s, h, nil
}
