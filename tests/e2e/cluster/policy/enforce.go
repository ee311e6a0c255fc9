package policy

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// settle is how long changes are gathered before filters are made of them.
	settle = 20 * time.Millisecond
	// again is how soon filters that could not be written are tried once more.
	again = time.Second
)

// argv0 is the name under which a program that has this package runs as the enforcer.
const argv0 = "sandtrail-policy"

// Argv is how the node's first process starts the enforcer: kubeconfig of an administrator.
func Argv(kubeconfig string) []string { return []string{argv0, kubeconfig} }

func init() {
	if len(os.Args) != 2 || os.Args[0] != argv0 {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if err := run(ctx, os.Args[1]); err != nil {
		log.Fatal(err)
	}
	stop()
	os.Exit(0)
}

type enforcer struct {
	pods       corelisters.PodLister
	namespaces corelisters.NamespaceLister
	policies   networkinglisters.NetworkPolicyLister
	changed    chan struct{}
	written    string
}

func run(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	core := factory.Core().V1()
	e := &enforcer{
		pods: core.Pods().Lister(), namespaces: core.Namespaces().Lister(), policies: factory.Networking().V1().NetworkPolicies().Lister(),
		changed: make(chan struct{}, 1),
	}
	ring := func(any) { e.ring() }
	for _, i := range []cache.SharedIndexInformer{core.Pods().Informer(), core.Namespaces().Informer(), factory.Networking().V1().NetworkPolicies().Informer()} {
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: ring, UpdateFunc: func(_, now any) { ring(now) }, DeleteFunc: ring}); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("watch %s: %w", kind, ctx.Err())
		}
	}
	e.follow(ctx)
	factory.Shutdown()
	return nil
}

func (e *enforcer) ring() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// follow writes the filters of what there is after each change, until ctx ends.
func (e *enforcer) follow(ctx context.Context) {
	for {
		wait := settle
		select {
		case <-e.changed:
		case <-ctx.Done():
			return
		}
		if err := e.write(ctx); err != nil {
			log.Print(err)
			wait = again
			e.ring()
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func (e *enforcer) write(ctx context.Context) error {
	o, err := e.observe()
	if err != nil {
		return err
	}
	text := filters(o)
	if text == e.written {
		return nil
	}
	cmd := exec.CommandContext(ctx, "iptables-restore", "--noflush", "--wait=10")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s\n%s", err, out, text)
	}
	// The chain is there from the first write on; packets are led to it once.
	for _, from := range []string{"FORWARD", "INPUT"} {
		if e.written != "" {
			break
		}
		if out, err := exec.CommandContext(ctx, "iptables", "--wait=10", "-t", table, "-A", from, "-j", chain).CombinedOutput(); err != nil {
			return fmt.Errorf("iptables: %w: %s", err, out)
		}
	}
	e.written = text
	return nil
}

func (e *enforcer) observe() (o observed, err error) {
	if o.pods, err = e.pods.List(labels.Everything()); err != nil {
		return o, err
	}
	slices.SortFunc(o.pods, func(a, b *corev1.Pod) int { return strings.Compare(string(a.UID), string(b.UID)) })
	spaces, err := e.namespaces.List(labels.Everything())
	if err != nil {
		return o, err
	}
	o.namespaces = map[string]labels.Set{}
	for _, n := range spaces {
		o.namespaces[n.Name] = n.Labels
	}
	o.policies, err = e.policies.List(labels.Everything())
	return o, err
}
