package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/meter"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// KubeConfig is for a cluster.
type KubeConfig struct {
	// Kubeconfig is a file with the way to the cluster; empty: this process runs in a pod of it.
	Kubeconfig string
	// File says in YAML what sandboxes are in the cluster: see docs/KUBERNETES.md.
	File string
	// AgentCA is a file with the certificate of the authority of those who may call the agents in sandboxes, AgentCert and AgentKey are this
	// process's own under it, all PEM.
	AgentCA, AgentCert, AgentKey string
	// Usage is who tells what sandboxes use: UsageKubelet unless set. AnyKubelet takes any certificate of a kubelet.
	Usage      string
	AnyKubelet bool
}

// Who tells what sandboxes use, see docs/METERING.md. UsageKubelet asks the kubelets, UsageProxy asks them through the API server, and
// UsageAgent the agents, whose figures the programs beside them can forge.
const (
	UsageKubelet = "kubelet"
	UsageProxy   = "proxy"
	UsageAgent   = "agent"
)

// The API server has its own fair queueing; a client's limit would only hold up creates that come together.
const (
	clusterQPS   = 500
	clusterBurst = 1000
)

// namespaceFile holds the namespace of the pod that a process runs in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func (c KubeConfig) mistakes() (errs []error) {
	for name, file := range map[string]string{"agent CA": c.AgentCA, "agent certificate": c.AgentCert, "agent key": c.AgentKey, "cluster file": c.File} {
		if file == "" {
			errs = append(errs, fmt.Errorf("%s: must be set for the driver %s", name, DriverKube))
		}
	}
	if !slices.Contains([]string{"", UsageKubelet, UsageProxy, UsageAgent}, c.Usage) {
		errs = append(errs, fmt.Errorf("pod usage: %q is none of %s, %s and %s", c.Usage, UsageKubelet, UsageProxy, UsageAgent))
	}
	if len(errs) > 0 {
		return errs
	}
	if _, err := c.load(); err != nil {
		errs = append(errs, err)
	}
	if _, err := client.LoadCredentials(c.AgentCert, c.AgentKey); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// load reads what sandboxes are in the cluster and checks it.
func (c KubeConfig) load() (manifest.Config, error) {
	var m manifest.Config
	data, err := os.ReadFile(c.File)
	if err != nil {
		return m, fmt.Errorf("cluster file: %w", err)
	}
	if err := yaml.UnmarshalStrict(data, &m); err != nil {
		return m, fmt.Errorf("cluster file %s: %w", c.File, err)
	}
	ca, err := os.ReadFile(c.AgentCA)
	if err != nil {
		return m, fmt.Errorf("agent CA: %w", err)
	}
	m.ClientCA = string(ca)
	if m.ServicesNamespace == "" && c.Kubeconfig == "" {
		// Outside of a cluster there is none, and whoever calls from there is named in the file.
		if ns, err := os.ReadFile(namespaceFile); err == nil {
			m.ServicesNamespace = strings.TrimSpace(string(ns))
		}
	}
	if err := m.Validate(); err != nil {
		return m, fmt.Errorf("cluster file %s: %w", c.File, err)
	}
	return m, nil
}

func (c KubeConfig) connect() (*rest.Config, error) {
	rc, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	rc.QPS, rc.Burst, rc.UserAgent = clusterQPS, clusterBurst, "sandtrail-lifecycle"
	return rc, nil
}

// openDriver opens what Config says. close ends what it does in the background; sandboxes go on.
func openDriver(ctx context.Context, cfg Config, log *slog.Logger, now func() time.Time) (d runtime.Driver, closeDriver func(), err error) {
	switch cfg.DriverName {
	case DriverGVisor:
		return newGVisor(ctx, cfg, log)
	case DriverKube:
		return newKube(ctx, cfg, log, now)
	}
	return nil, nil, errors.New("there is no such driver")
}

func (c KubeConfig) meter(rc *rest.Config, cluster kubernetes.Interface, agents kube.Agents, now func() time.Time) (kube.Meter, error) {
	switch c.Usage {
	case UsageAgent:
		return kube.Told{Agents: agents}, nil
	case UsageProxy:
		return meter.New(meter.Proxied{Client: cluster.CoreV1().RESTClient()}, now), nil
	}
	direct, err := meter.NewDirect(rc, 0, c.AnyKubelet)
	if err != nil {
		return nil, err
	}
	return meter.New(direct, now), nil
}

func newKube(ctx context.Context, cfg Config, log *slog.Logger, now func() time.Time) (runtime.Driver, func(), error) {
	m, err := cfg.Kube.load()
	if err != nil {
		return nil, nil, err
	}
	rc, err := cfg.Kube.connect()
	if err != nil {
		return nil, nil, err
	}
	cluster, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, nil, fmt.Errorf("open the cluster: %w", err)
	}
	credentials, err := client.LoadCredentials(cfg.Kube.AgentCert, cfg.Kube.AgentKey)
	if err != nil {
		return nil, nil, err
	}
	agents := kube.Called(credentials)
	usage, err := cfg.Kube.meter(rc, cluster, agents, now)
	if err != nil {
		return nil, nil, err
	}
	d, err := kube.New(ctx, kube.Options{
		Client: cluster, Config: m, Worker: cfg.Worker, Agents: agents, Meter: usage, KeepWorkspace: cfg.KeepWorkspace, Now: now, Log: log,
	})
	if err != nil {
		return nil, nil, err
	}
	return d, d.Close, nil
}
