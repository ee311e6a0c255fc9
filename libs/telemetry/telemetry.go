// Package telemetry gives a process its logger, its metrics and its traces, and carries a call's trace and correlation id
// through NATS headers.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Config of a process's telemetry. The zero Config logs text at info to stderr and exports nothing.
type Config struct {
	// Service is service.name of every span and the attribute service of every log line.
	Service string
	// OTLPEndpoint is where spans go by OTLP over gRPC: https://host:port with TLS, http://host:port or host:port without.
	// Empty: spans go nowhere, but their ids are still made and passed on.
	OTLPEndpoint string
	// LogLevel is debug, info, warn or error; by default info.
	LogLevel string
	// LogFormat is text or json; by default text.
	LogFormat string
	// Output gets the log, by default os.Stderr.
	Output io.Writer
}

// Telemetry is what Setup made.
type Telemetry struct {
	Log *slog.Logger
	// Registry has the Go runtime's and the process's metrics already.
	Registry *prometheus.Registry
	// Tracer is that of Config.Service; For is that of another part of the same process.
	Tracer trace.TracerProvider
	// Shutdown sends the spans that still wait, as long as its context lasts.
	Shutdown func(context.Context) error

	processor sdktrace.SpanProcessor
}

// For is the tracer of a service that shares its process with others: service is service.name of its spans, which go where
// those of Tracer go and end with its Shutdown.
func (t *Telemetry) For(service string) trace.TracerProvider { return newTracer(service, t.processor) }

// Setup makes a process's telemetry and sets nothing global. A level, format or endpoint that it does not understand is an
// error; a collector that cannot be reached is none: spans wait in a queue of 2,048 and are dropped when it is full.
func Setup(ctx context.Context, c Config) (*Telemetry, error) {
	log, err := newLogger(c)
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	processor, err := newProcessor(ctx, c)
	if err != nil {
		return nil, err
	}
	tracer := newTracer(c.Service, processor)
	return &Telemetry{Log: log, Registry: registry, Tracer: tracer, Shutdown: tracer.Shutdown, processor: processor}, nil
}

func newTracer(service string, p sdktrace.SpanProcessor) *sdktrace.TracerProvider {
	res := sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", service)))
	if p == nil {
		// Nobody reads them, so nothing is recorded; ids are made all the same.
		return sdktrace.NewTracerProvider(res, sdktrace.WithSampler(sdktrace.NeverSample()))
	}
	return sdktrace.NewTracerProvider(res, sdktrace.WithSpanProcessor(p))
}

// newProcessor is nil where spans go nowhere.
func newProcessor(ctx context.Context, c Config) (sdktrace.SpanProcessor, error) {
	if c.OTLPEndpoint == "" {
		return nil, nil
	}
	options, err := exporterOptions(c.OTLPEndpoint)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("make otlp exporter: %w", err)
	}
	return sdktrace.NewBatchSpanProcessor(exporter), nil
}

func exporterOptions(endpoint string) ([]otlptracegrpc.Option, error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok {
		scheme, rest = "http", endpoint
	}
	host := strings.TrimSuffix(rest, "/")
	if host == "" || strings.ContainsAny(host, "/?#@ ") {
		return nil, fmt.Errorf("otlp endpoint has no plain host:port")
	}
	switch scheme {
	case "https":
		return []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(host)}, nil
	case "http":
		return []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(host), otlptracegrpc.WithInsecure()}, nil
	default:
		return nil, fmt.Errorf("otlp endpoint has scheme %q; it can be http or https", scheme)
	}
}

func newLogger(c Config) (*slog.Logger, error) {
	var level slog.Level
	switch strings.ToLower(c.LogLevel) {
	case "debug":
		level = slog.LevelDebug
	case "", "info":
		level = slog.LevelInfo
	case "warn":
		level = slog.LevelWarn
	case "error":
		level = slog.LevelError
	default:
		return nil, fmt.Errorf("log level %q is unknown; it can be debug, info, warn or error", c.LogLevel)
	}
	out := c.Output
	if out == nil {
		out = os.Stderr
	}
	options := &slog.HandlerOptions{Level: level}
	var h slog.Handler
	switch strings.ToLower(c.LogFormat) {
	case "", "text":
		h = slog.NewTextHandler(out, options)
	case "json":
		h = slog.NewJSONHandler(out, options)
	default:
		return nil, fmt.Errorf("log format %q is unknown; it can be text or json", c.LogFormat)
	}
	log := slog.New(NewHandler(h))
	if c.Service != "" {
		log = log.With("service", c.Service)
	}
	return log, nil
}
