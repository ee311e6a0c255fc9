package system

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// fieldOwner is Helm's.
const fieldOwner = "helm"

// applier writes objects of any kind.
type applier struct {
	client dynamic.Interface
	mapper meta.RESTMapper
}

func newApplier(config *rest.Config) (applier, error) {
	found, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return applier{}, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return applier{}, err
	}
	return applier{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))}, nil
}

func (a applier) of(o unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := o.GroupVersionKind()
	m, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		return a.client.Resource(m.Resource), nil
	}
	return a.client.Resource(m.Resource).Namespace(o.GetNamespace()), nil
}

func (a applier) apply(ctx context.Context, o unstructured.Unstructured) error {
	at, err := a.of(o)
	if err == nil {
		_, err = at.Apply(ctx, o.GetName(), &o, metav1.ApplyOptions{FieldManager: fieldOwner, Force: true})
	}
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// remove returns once the object is gone.
func (a applier) remove(ctx context.Context, o unstructured.Unstructured) error {
	at, err := a.of(o)
	if err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	err = at.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return until(ctx, o.GetKind()+" "+o.GetName()+" is gone", func(ctx context.Context) error {
		_, err := at.Get(ctx, o.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

// kinds in the order in which they are made: what others refer to first, as Helm has it.
var kinds = []string{
	"Namespace", "NetworkPolicy", "ResourceQuota", "PodDisruptionBudget", "ServiceAccount", "ConfigMap", "RuntimeClass",
	"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Service",
}

func inOrder(all []unstructured.Unstructured) []unstructured.Unstructured {
	rank := func(o unstructured.Unstructured) int {
		if at := slices.Index(kinds, o.GetKind()); at >= 0 {
			return at
		}
		return len(kinds)
	}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b unstructured.Unstructured) int { return rank(a) - rank(b) })
	return sorted
}

// pollEvery is between two questions.
const pollEvery = 100 * time.Millisecond

// finalError ends a wait: it will not come right.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

func final(err error) error { return finalError{err} }

// until asks again until ask succeeds, gives a final error, or ctx ends.
func until(ctx context.Context, what string, ask func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		var end finalError
		if errors.As(err, &end) {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", what, ctx.Err(), err)
		}
	}
}
