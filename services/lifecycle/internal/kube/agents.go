package kube

import (
	"context"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandtrail/sandtrail/libs/runtime"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// Called are the agents as those who have the credentials reach them.
func Called(c *client.Credentials) Agents { return called{c} }

type called struct{ credentials *client.Credentials }

func agentOf(e runtime.Endpoint) client.Agent {
	return client.Agent{Address: e.Address, Name: e.Runtime, UID: e.UID, KeySHA256: e.KeySHA256}
}

func (c called) Meet(ctx context.Context, e runtime.Endpoint) (runtime.Endpoint, error) {
	met, _, err := c.credentials.Meet(ctx, agentOf(e))
	e.KeySHA256 = met.KeySHA256
	return e, err
}

func (c called) Client(e runtime.Endpoint) *client.Client {
	return client.NewRouted(c.credentials.Route(agentOf(e)), "")
}

func (c called) Dial(ctx context.Context, e runtime.Endpoint) (net.Conn, error) {
	return c.credentials.Route(agentOf(e)).Dial(ctx)
}

// Told measures by what agents tell of their sandboxes, which the programs inside can forge.
type Told struct{ Agents Agents }

// Usage implements Meter.
func (m Told) Usage(ctx context.Context, _ *corev1.Pod, e runtime.Endpoint) (runtime.Usage, error) {
	u, err := m.Agents.Client(e).Usage(ctx, &toolboxv1.Usage{})
	if err != nil {
		return runtime.Usage{}, err
	}
	return runtime.Usage{
		CPUMillis: u.GetUsage().GetCpuMs(), MemoryBytes: u.GetMemoryBytes(), MemoryPeakBytes: u.GetUsage().GetMemoryPeakBytes(),
		MemoryAvgBytes: u.GetUsage().GetMemoryAvgBytes(), DiskReadBytes: u.GetUsage().GetDiskReadBytes(), DiskWriteBytes: u.GetUsage().GetDiskWriteBytes(),
		Uptime: time.Duration(u.GetUptimeMs()) * time.Millisecond, Method: u.GetMethod(),
	}, nil
}
