package cluster

import (
	"fmt"
	"path/filepath"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/pki"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/process"
)

// The programs of a cluster, by the names that faults take.
const (
	Etcd              = "etcd"
	APIServer         = "apiserver"
	ControllerManager = "controller-manager"
	Scheduler         = "scheduler"
	Containerd        = "containerd"
	Kubelet           = "kubelet"
	Proxy             = "proxy"
	Provisioner       = "provisioner"
	Names             = "names"
	Policies          = "policies"
)

// place is where the control plane listens, and with what.
type place struct {
	dir                       string // logs, data and pki of this cluster
	kube                      string // the program that holds all components
	bind, advertise           string
	etcd, etcdPeer, apiserver int // ports
	services                  string
	authority                 *pki.Authority
}

func (p place) spec(name string, argv ...string) process.Spec {
	return process.Spec{Name: name, Argv: argv, Log: filepath.Join(p.dir, "logs", name+".log")}
}

// etcdSpec writes without fsync: the cluster ends with its host, and a slow disk is a fault that a test makes on purpose.
func (p place) etcdSpec() process.Spec {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", p.etcd), fmt.Sprintf("http://127.0.0.1:%d", p.etcdPeer)
	return p.spec(Etcd, p.kube, "etcd", "--name=test", "--data-dir="+filepath.Join(p.dir, "etcd"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer,
		"--unsafe-no-fsync", "--log-level=warn")
}

func (p place) apiserverSpec(extra ...string) process.Spec {
	a := p.authority
	return p.spec(APIServer, append([]string{
		p.kube, "apiserver",
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", p.etcd),
		"--bind-address=" + p.bind, "--advertise-address=" + p.advertise, fmt.Sprintf("--secure-port=%d", p.apiserver),
		"--tls-cert-file=" + a.CertificateFile("apiserver"), "--tls-private-key-file=" + a.KeyFile("apiserver"),
		"--client-ca-file=" + a.CertificateFile("ca"),
		"--kubelet-client-certificate=" + a.CertificateFile("kubelet-client"), "--kubelet-client-key=" + a.KeyFile("kubelet-client"),
		"--kubelet-certificate-authority=" + a.CertificateFile("ca"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-key-file=" + filepath.Join(a.Dir, "tokens.pub"), "--service-account-signing-key-file=" + a.KeyFile("tokens"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-cluster-ip-range=" + p.services, "--authorization-mode=Node,RBAC",
		"--allow-privileged=true", "--profiling=false",
	}, extra...)...)
}

// certificates writes what the control plane proves itself with.
func certificates(dir, node string, addresses ...string) (*pki.Authority, error) {
	a, err := pki.New(filepath.Join(dir, "pki"))
	if err != nil {
		return nil, err
	}
	names := append([]string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "127.0.0.1",
	}, addresses...)
	for _, write := range []func() error{
		func() error { return a.WriteServer("apiserver", names...) },
		func() error { return a.WriteServer("kubelet", append([]string{node}, addresses...)...) },
		func() error { return a.WriteClient("kubelet-client", "apiserver-kubelet-client", "system:masters") },
		func() error { return a.WriteKeyPair("tokens") },
	} {
		if err := write(); err != nil {
			return nil, err
		}
	}
	return a, nil
}
