// Package system installs Sandtrail on a test's cluster as its users do: images that were built without a daemon, secrets from the command
// line, and the chart.
package system

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sandtrail/sandtrail/deploy/k8s/render"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster"
)

// Where everything is, and what it is called.
const (
	Namespace = "sandtrail"
	Sandboxes = "sandtrail-sandboxes"
	Worker    = "kubernetes"

	release  = "sandtrail"
	registry = "registry.example.com/sandtrail"
	tag      = "test"
)

// keepPolicy is the annotation of what Helm leaves when it uninstalls.
const keepPolicy = "helm.sh/resource-policy"

// Options of an installation.
type Options struct {
	// Source is the top of the source tree.
	Source string
	// Images is a directory of NAME.tar as `make images` writes them; empty: they are built.
	Images string
	// Tenant of the API key.
	Tenant string
	// ClickHouse is its address as pods reach it, with a password; empty: no usage service.
	ClickHouse string
	// Values over those of a small installation: one NATS server, one process of each service, two of the worker.
	Values map[string]any
	// Progress is told each step; it may be nil.
	Progress func(format string, args ...any)
}

// Installation is one that was made.
type Installation struct {
	// Key is the API key of Options.Tenant, and GRPC the gateway's host and port, as this host reaches it.
	Key, GRPC string

	cluster *cluster.Cluster
	options Options
	applier applier
	cli     v1.Image // of the command line
	objects []unstructured.Unstructured
	tests   []unstructured.Unstructured
}

// Install installs, and returns once every process is ready. What an earlier installation left on a kept node is removed first. On an error the
// cluster has what was made so far.
func Install(ctx context.Context, c *cluster.Cluster, o Options) (*Installation, error) {
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	config, err := c.AdminConfig()
	if err != nil {
		return nil, err
	}
	i := &Installation{cluster: c, options: o}
	if i.applier, err = newApplier(config); err != nil {
		return nil, err
	}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"remove what was there", i.Remove},
		{"images", i.images},
		{"chart", i.chart},
		{"ready", i.Ready},
		{"gateway", i.find},
	} {
		begin := time.Now()
		if err := step.do(ctx); err != nil {
			return i, fmt.Errorf("%s: %w", step.what, err)
		}
		o.Progress("%s: %s", step.what, time.Since(begin).Round(time.Millisecond))
	}
	return i, nil
}

// values are those of the installation.
func (i *Installation) values() map[string]any {
	one := func() map[string]any { return map[string]any{"replicas": 1} }
	v := map[string]any{
		"image": map[string]any{"registry": registry, "tag": tag, "pullPolicy": "Never"},
		// Three servers are three flushes to one disk here, and show nothing more.
		"nats": one(), "gateway": one(), "scheduler": one(),
		"worker": map[string]any{"replicas": 2, "name": Worker, "startDeadline": "10m"},
		"usage":  map[string]any{"enabled": i.options.ClickHouse != ""},
		// Nearly nothing is reserved: the node has few cores, and many sandboxes that sleep.
		"sandboxes": map[string]any{"namespace": Sandboxes, "profiles": map[string]any{
			"default": map[string]any{"cpuRequest": 1, "memoryRequest": 1, "storageRequest": 1},
		}},
	}
	for k, over := range i.options.Values {
		v[k] = over
	}
	return v
}

// chart applies namespace, secrets and the chart.
func (i *Installation) chart(ctx context.Context) error {
	rendered, err := render.Chart(filepath.Join(i.options.Source, "deploy/k8s/chart"), render.Release{Name: release, Namespace: Namespace}, i.values())
	if err != nil {
		return err
	}
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if _, err := i.cluster.Client.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := i.secrets(ctx); err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	i.objects, i.tests = inOrder(rendered.Objects), rendered.Tests
	for _, o := range i.objects {
		if err := i.applier.apply(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// find fills in where the gateway answers.
func (i *Installation) find(ctx context.Context) error {
	s, err := i.cluster.Client.CoreV1().Services(Namespace).Get(ctx, release+"-gateway", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, p := range s.Spec.Ports {
		if p.Name == "grpc" {
			i.GRPC = net.JoinHostPort(s.Spec.ClusterIP, fmt.Sprint(p.Port))
			return nil
		}
	}
	return errors.New("its service has no port grpc")
}

// Test runs the pods of `helm test`, one after the other, and takes each away.
func (i *Installation) Test(ctx context.Context) error {
	if len(i.tests) == 0 {
		return errors.New("the chart has no tests")
	}
	pods := i.cluster.Client.CoreV1().Pods(Namespace)
	for _, o := range i.tests {
		if err := i.applier.apply(ctx, o); err != nil {
			return err
		}
		err := until(ctx, "test "+o.GetName()+" has passed", func(ctx context.Context) error {
			p, err := pods.Get(ctx, o.GetName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			if p.Status.Phase == corev1.PodFailed {
				return final(errors.New(i.tell(ctx, p)))
			}
			if p.Status.Phase != corev1.PodSucceeded {
				return errors.New(i.tell(ctx, p))
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := i.applier.remove(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// Uninstall is `helm uninstall`: it returns once everything is gone but what the chart keeps, the secrets and the claims of NATS.
func (i *Installation) Uninstall(ctx context.Context) error {
	for n := len(i.objects) - 1; n >= 0; n-- {
		o := i.objects[n]
		if o.GetAnnotations()[keepPolicy] != "" {
			continue
		}
		if err := i.applier.remove(ctx, o); err != nil {
			return err
		}
	}
	return until(ctx, "no pod of the services is left", func(ctx context.Context) error {
		pods, err := i.cluster.Client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if n := len(pods.Items); n > 0 {
			return fmt.Errorf("%d are left, %s among them", n, pods.Items[0].Name)
		}
		return nil
	})
}

// Remove deletes both namespaces, and returns once they and every volume of theirs are gone.
func (i *Installation) Remove(ctx context.Context) error {
	spaces := i.cluster.Client.CoreV1().Namespaces()
	for _, name := range []string{Sandboxes, Namespace} {
		if err := spaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return until(ctx, "nothing is left", func(ctx context.Context) error {
		for _, name := range []string{Sandboxes, Namespace} {
			_, err := spaces.Get(ctx, name, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return errors.Join(fmt.Errorf("namespace %s is there", name), err)
			}
		}
		volumes, err := i.cluster.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, v := range volumes.Items {
			if c := v.Spec.ClaimRef; c != nil && (c.Namespace == Namespace || c.Namespace == Sandboxes) {
				return fmt.Errorf("volume %s of claim %s is there", v.Name, c.Name)
			}
		}
		return nil
	})
}
