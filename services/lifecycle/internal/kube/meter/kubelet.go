package meter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

const (
	kubeletPort    = 10250
	requestTimeout = 5 * time.Second
	// maxAnswer bounds an answer: some KiB for each pod of a node.
	maxAnswer = 32 << 20
)

// Direct asks kubelets themselves. The caller needs leave to get nodes/stats and nothing else of a node, whereas the way through the
// API server needs nodes/proxy, with which one may run programs in every pod of the node.
type Direct struct {
	client *http.Client
	port   int
}

// NewDirect makes a source out of the credentials for the API server. Kubelets show a certificate of the cluster's CA where they are
// set up to; insecure takes any, for clusters whose kubelets sign their own: then whoever has a node's address gets the credential.
// Port 0 is 10250.
func NewDirect(cfg *rest.Config, port int, insecure bool) (*Direct, error) {
	cfg = rest.CopyConfig(cfg)
	if insecure {
		cfg.TLSClientConfig.Insecure, cfg.TLSClientConfig.CAData, cfg.TLSClientConfig.CAFile = true, nil, ""
	}
	// The name of the API server is not the kubelet's.
	cfg.TLSClientConfig.ServerName = ""
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare to ask kubelets: %w", err)
	}
	client.Timeout = requestTimeout
	if port == 0 {
		port = kubeletPort
	}
	return &Direct{client: client, port: port}, nil
}

// Summary implements Source.
func (d *Direct) Summary(ctx context.Context, pod *corev1.Pod) ([]byte, error) {
	if pod.Status.HostIP == "" {
		return nil, errors.New("the address of its node is not known")
	}
	url := "https://" + net.JoinHostPort(pod.Status.HostIP, strconv.Itoa(d.port)) + "/stats/summary"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := d.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers with status %d", res.StatusCode)
	}
	return io.ReadAll(io.LimitReader(res.Body, maxAnswer))
}

// Proxied asks kubelets through the API server, for whoever cannot reach the nodes. It needs leave to get nodes/proxy.
type Proxied struct {
	// Client is for the core API.
	Client rest.Interface
}

// Summary implements Source.
func (p Proxied) Summary(ctx context.Context, pod *corev1.Pod) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return p.Client.Get().Resource("nodes").Name(pod.Spec.NodeName).SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
}
