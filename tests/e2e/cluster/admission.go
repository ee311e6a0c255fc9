package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Quota gives a namespace a quota; what is above it is refused from then on. Without a controller manager nobody counts what
// was there before, and what is deleted is not given back.
func (c *Cluster) Quota(ctx context.Context, namespace string, hard corev1.ResourceList) error {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	made, err := c.Client.CoreV1().ResourceQuotas(namespace).Create(ctx, q, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("give %s a quota: %w", namespace, err)
	}
	managed, err := c.has(ctx, ControllerManager)
	if err != nil || managed {
		return err
	}
	// A quota is judged by its status, which a controller would fill in.
	made.Status.Hard, made.Status.Used = hard, corev1.ResourceList{}
	for name := range hard {
		zero := hard[name].DeepCopy()
		zero.Set(0)
		made.Status.Used[name] = zero
	}
	_, err = c.Client.CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

func (c *Cluster) has(ctx context.Context, name string) (bool, error) {
	all, err := c.processes.Status(ctx)
	for _, s := range all {
		if s.Name == name {
			return true, err
		}
	}
	return false, err
}

// Webhook is an admission webhook that runs in this process.
type Webhook struct {
	cluster   *Cluster
	server    *http.Server
	name      string
	namespace string
	refused   atomic.Int64
}

// Refused is how many requests it has refused, dry runs included.
func (w *Webhook) Refused() int64 { return w.refused.Load() }

// Remove takes the webhook away and waits until the API server asks it no more.
func (w *Webhook) Remove(ctx context.Context) error {
	if err := w.withdraw(ctx); err != nil {
		return err
	}
	err := w.cluster.until(ctx, "no webhook is asked", []string{APIServer}, w.probe)
	return errors.Join(err, w.server.Close())
}

// withdraw has the API server ask it no more, some moments later.
func (w *Webhook) withdraw(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	err := w.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, w.name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// probe asks for a pod of the webhook's own, which nobody stores.
func (w *Webhook) probe(ctx context.Context) error {
	yes, no := true, false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "webhook-probe-"},
		// Pod Security is asked before webhooks are, and lets this one by.
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "c", Image: "none", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		},
	}
	_, err := w.cluster.Client.CoreV1().Pods(w.namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// RefusePods makes every create of a pod in a namespace fail with a message, as a policy of a cluster does, until Remove. The
// webhook runs in this process and ends with it, and until it is removed nobody makes pods there.
func (c *Cluster) RefusePods(ctx context.Context, namespace, message string) (*Webhook, error) {
	pair, err := c.authority.Server("webhook", c.HostAddress)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(c.HostAddress, "0"))
	if err != nil {
		return nil, err
	}
	w := &Webhook{cluster: c, name: "refuse-pods-" + namespace, namespace: namespace}
	w.server = &http.Server{
		ReadHeaderTimeout: 10 * time.Second, Handler: w.refuse(namespace, message),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
	}
	go func() { _ = w.server.ServeTLS(l, "", "") }()
	url := "https://" + l.Addr().String()
	if err := c.register(ctx, w, url); err != nil {
		return nil, errors.Join(err, w.withdraw(context.WithoutCancel(ctx)), w.server.Close())
	}
	return w, nil
}

func (c *Cluster) register(ctx context.Context, w *Webhook, url string) error {
	none, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail
	scope := admissionregistrationv1.NamespacedScope
	hook := admissionregistrationv1.ValidatingWebhook{
		Name: "refuse.test.sandtrail.dev", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: c.authority.Certificate()},
		SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.namespace}},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: &scope},
		}},
	}
	_, err := c.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.name}, Webhooks: []admissionregistrationv1.ValidatingWebhook{hook},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// The API server takes a configuration up some moments later.
	return c.until(ctx, "the webhook is asked", []string{APIServer}, func(ctx context.Context) error {
		if err := w.probe(ctx); w.Refused() == 0 {
			return fmt.Errorf("not yet: %w", err)
		}
		return nil
	})
}

func (w *Webhook) refuse(namespace, message string) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(in.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(out, "no review", http.StatusBadRequest)
			return
		}
		w.refused.Add(1)
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: review.Request.Namespace != namespace,
			Result: &metav1.Status{Message: message, Code: http.StatusForbidden},
		}
		review.Request = nil
		_ = json.NewEncoder(out).Encode(review)
	})
}
