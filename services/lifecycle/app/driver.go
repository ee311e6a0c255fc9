package app

import (
	"context"
	"log/slog"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
)

// DriverConfig is for the runtime driver.
type DriverConfig struct {
	Kind string
}

func (c DriverConfig) name() string {
	if c.Kind == "" {
		return "gvisor"
	}
	return c.Kind
}

func newDriver(_ context.Context, _ Config, _ *slog.Logger) (runtime.Driver, error) {
	return nil, fault.New(fault.FailedPrecondition, fault.ReasonRuntimeFailed, "there is no runtime driver")
}
