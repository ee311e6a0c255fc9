package natsserver

import (
	"errors"
	"fmt"
	"log/slog"
)

// logger gives the server's own messages to slog. Traces, which would hold what clients send, are dropped whatever the level.
type logger struct {
	log   *slog.Logger
	fatal chan error // the first fatal message
}

func newLogger(l *slog.Logger) *logger {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return &logger{log: l.With("component", "nats-server"), fatal: make(chan error, 1)}
}

// The server calls a start with defaults a notice; to whoever runs Sandtrail that is detail.
func (l *logger) Noticef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l *logger) Warnf(format string, v ...any)   { l.log.Warn(fmt.Sprintf(format, v...)) }
func (l *logger) Errorf(format string, v ...any)  { l.log.Error(fmt.Sprintf(format, v...)) }
func (l *logger) Debugf(format string, v ...any)  { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l *logger) Tracef(string, ...any)           {}

func (l *logger) Fatalf(format string, v ...any) {
	msg := fmt.Sprintf(format, v...)
	l.log.Error(msg)
	select {
	case l.fatal <- errors.New(msg):
	default:
	}
}
