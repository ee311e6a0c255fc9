package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/telemetry"
)

func setup(t *testing.T, c telemetry.Config) (*telemetry.Telemetry, *bytes.Buffer) {
	t.Helper()
	out := &bytes.Buffer{}
	c.Output = out
	tel, err := telemetry.Setup(t.Context(), c)
	require.NoError(t, err)
	return tel, out
}

func TestLinesCarryTheIdsOfTheCall(t *testing.T) {
	tel, out := setup(t, telemetry.Config{Service: "gateway", LogFormat: "json"})
	ctx, span := tel.Tracer.Tracer("t").Start(t.Context(), "op")
	ctx = telemetry.WithCorrelation(ctx, "c-1")
	tel.Log.With("a", 1).WithGroup("g").With("b", 2).InfoContext(ctx, "hello", "c", 3)
	var line map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &line))
	require.Equal(t, "gateway", line["service"])
	require.Equal(t, "c-1", line["correlation_id"], "top level, also below a group")
	require.Equal(t, span.SpanContext().TraceID().String(), line["trace_id"])
	require.Equal(t, span.SpanContext().SpanID().String(), line["span_id"])
	require.EqualValues(t, 1, line["a"])
	require.Equal(t, map[string]any{"b": 2.0, "c": 3.0}, line["g"])

	out.Reset()
	tel.Log.Debug("below the level")
	require.Empty(t, out.String())
}

type withSecret struct {
	Name string
	Key  telemetry.Secret
}

func TestSecretsDoNotPrint(t *testing.T) {
	s := telemetry.Secret("hunter2")
	for _, format := range []string{"json", "text"} {
		tel, out := setup(t, telemetry.Config{LogFormat: format})
		tel.Log.With("with", s).WithGroup("g").Info("m", "plain", s, "pointer", &s, "list", []telemetry.Secret{s},
			"map", map[string]telemetry.Secret{"k": s}, "struct", withSecret{"n", s}, "pointed", &withSecret{"n", s},
			slog.Group("group", "inner", s), "bytes", []byte("hunter2"), "error", fmt.Errorf("login with %q %v", s, s))
		require.NotContains(t, out.String(), "hunter2", format)
		require.GreaterOrEqual(t, strings.Count(out.String(), "[redacted]"), 8)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		require.NotContains(t, fmt.Sprintf(verb, s), "hunter2")
		require.NotContains(t, fmt.Sprintf(verb, s), fmt.Sprintf("%x", "hunter2"))
		require.NotContains(t, fmt.Sprintf(verb, withSecret{Key: s}), "hunter2")
	}
	require.Equal(t, "hunter2", string(s))
}

func TestHeadersCarryTheCall(t *testing.T) {
	tel, _ := setup(t, telemetry.Config{})
	ctx, span := tel.Tracer.Tracer("t").Start(t.Context(), "op")
	ctx = telemetry.WithCorrelation(ctx, "c-1")
	h := nats.Header{}
	telemetry.Inject(ctx, h)
	got := telemetry.Extract(t.Context(), h)
	require.Equal(t, "c-1", telemetry.Correlation(got))
	require.Equal(t, span.SpanContext().TraceID(), trace.SpanContextFromContext(got).TraceID())
	require.True(t, trace.SpanContextFromContext(got).IsRemote())

	telemetry.Inject(ctx, nil)
	require.Empty(t, telemetry.Correlation(telemetry.Extract(t.Context(), nil)))
	bad := nats.Header{"traceparent": {"00-zz"}, "Sandtrail-Correlation": {"a b\r\nEvil: 1"}}
	got = telemetry.Extract(t.Context(), bad)
	require.Empty(t, telemetry.Correlation(got))
	require.False(t, trace.SpanContextFromContext(got).IsValid())
	require.Empty(t, telemetry.Correlation(telemetry.WithCorrelation(t.Context(), strings.Repeat("x", 129))))
	require.Len(t, telemetry.Correlation(telemetry.WithCorrelation(t.Context(), strings.Repeat("x", 128))), 128)
}

func TestRegistryHasTheProcess(t *testing.T) {
	tel, _ := setup(t, telemetry.Config{})
	families, err := tel.Registry.Gather()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
	}
	require.True(t, names["go_goroutines"])
	require.True(t, names["process_cpu_seconds_total"])
}

func TestSetupRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, c := range []telemetry.Config{
		{LogLevel: "loud"}, {LogFormat: "xml"}, {OTLPEndpoint: "ftp://x:1"}, {OTLPEndpoint: "http://u:p@x:1"}, {OTLPEndpoint: "http://"},
	} {
		_, err := telemetry.Setup(t.Context(), c)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "u:p")
	}
}

type sink struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (s *sink) Export(
	_ context.Context, r *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	s.got <- r
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestSpansReachTheCollector(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &sink{got: make(chan *collector.ExportTraceServiceRequest, 4)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)

	tel, _ := setup(t, telemetry.Config{Service: "exec", OTLPEndpoint: l.Addr().String()})
	_, span := tel.Tracer.Tracer("t").Start(t.Context(), "op")
	span.End()
	_, span = tel.For("usage").Tracer("t").Start(t.Context(), "other op")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, tel.Shutdown(ctx))
	of := map[string]string{}
	for _, r := range (<-s.got).GetResourceSpans() {
		of[r.GetResource().GetAttributes()[0].GetValue().GetStringValue()] = r.GetScopeSpans()[0].GetSpans()[0].GetName()
	}
	require.Equal(t, map[string]string{"exec": "op", "usage": "other op"}, of)
}

func TestAnEventsTraceGoesOn(t *testing.T) {
	tel, _ := setup(t, telemetry.Config{})
	ctx, span := tel.Tracer.Tracer("t").Start(t.Context(), "op")
	h := nats.Header{}
	telemetry.Inject(ctx, h)
	got := telemetry.Continue(t.Context(), envelope.Meta{Traceparent: h.Get("traceparent")})
	require.Equal(t, span.SpanContext().SpanID(), trace.SpanContextFromContext(got).SpanID())
	require.False(t, trace.SpanContextFromContext(telemetry.Continue(t.Context(), envelope.Meta{Traceparent: "00-x"})).IsValid())

	link, ok := telemetry.Link(h)
	require.True(t, ok)
	require.Equal(t, span.SpanContext().TraceID(), link.SpanContext.TraceID())
	_, ok = telemetry.Link(nil)
	require.False(t, ok)
}
