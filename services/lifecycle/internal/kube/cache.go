package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
)

// seen is what the watches of the namespace show: the pods and claims of this worker, and what the cluster warns of. It is a moment
// behind the cluster.
type seen struct {
	namespace string
	pods      cache.SharedIndexInformer
	claims    cache.SharedIndexInformer
	warnings  cache.SharedIndexInformer
	done      sync.WaitGroup

	mu      sync.Mutex
	waiting map[string]map[chan struct{}]struct{}
	// met are the agents that answered, by sandbox.
	met    map[string]runtime.Endpoint
	notify func(string)
}

// Indexes of the caches.
const (
	bySandbox = "sandbox"
	byObject  = "object"
)

// watch begins to watch; ctx ends it.
func watch(ctx context.Context, o Options) (*seen, error) {
	ours := k8slabels.SelectorFromSet(manifest.Selector(o.Worker)).String()
	mine := func(l *metav1.ListOptions) { l.LabelSelector = ours }
	index := cache.Indexers{bySandbox: func(obj any) ([]string, error) { return []string{idOf(obj.(metav1.Object))}, nil }}
	ns := o.Config.Namespace
	s := &seen{
		namespace: ns, waiting: map[string]map[chan struct{}]struct{}{}, met: map[string]runtime.Endpoint{}, notify: func(string) {},
		pods:   coreinformers.NewFilteredPodInformer(o.Client, ns, 0, index, mine),
		claims: coreinformers.NewFilteredPersistentVolumeClaimInformer(o.Client, ns, 0, index, mine),
		warnings: coreinformers.NewFilteredEventInformer(o.Client, ns, 0, cache.Indexers{byObject: func(obj any) ([]string, error) {
			e := obj.(*corev1.Event)
			return []string{e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name}, nil
		}}, func(l *metav1.ListOptions) { l.FieldSelector = "type=" + corev1.EventTypeWarning }),
	}
	var errs []error
	for informer, parts := range map[cache.SharedIndexInformer]struct {
		trim cache.TransformFunc
		of   func(obj any) string
	}{
		s.pods: {trimPod, owner}, s.claims: {trimClaim, owner}, s.warnings: {trimEvent, s.subject},
	} {
		errs = append(errs, informer.SetTransform(parts.trim))
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { s.ring(parts.of(obj)) },
			UpdateFunc: func(_, obj any) { s.ring(parts.of(obj)) },
			DeleteFunc: func(obj any) { s.ring(parts.of(obj)) },
		})
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("watch namespace %s: %w", ns, err)
	}
	for _, informer := range s.informers() {
		s.done.Go(func() { informer.RunWithContext(ctx) })
	}
	return s, nil
}

func (s *seen) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{s.pods, s.claims, s.warnings}
}

// sync waits until everything that there was at the start is known.
func (s *seen) sync(ctx context.Context) error {
	for _, informer := range s.informers() {
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return fmt.Errorf("watch namespace %s: it cannot be listed: %w", s.namespace, ctx.Err())
		}
	}
	return nil
}

func (s *seen) wait() { s.done.Wait() }

func owner(obj any) string {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	o, ok := obj.(metav1.Object)
	if !ok {
		return ""
	}
	return idOf(o)
}

// subject is the sandbox that an event is about.
func (s *seen) subject(obj any) string {
	e, ok := obj.(*corev1.Event)
	if !ok {
		return ""
	}
	store := s.pods
	if e.InvolvedObject.Kind != "Pod" {
		store = s.claims
	}
	found, ok, err := store.GetStore().GetByKey(s.namespace + "/" + e.InvolvedObject.Name)
	if err != nil || !ok {
		return ""
	}
	return owner(found)
}

func (s *seen) ring(id string) {
	if id == "" {
		return
	}
	s.mu.Lock()
	for c := range s.waiting[id] {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	notify := s.notify
	s.mu.Unlock()
	notify(id)
}

// changes gives a value soon after something of the sandbox has changed. Changes that come together may give one.
func (s *seen) changes(id string) (_ <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[id] == nil {
		s.waiting[id] = map[chan struct{}]struct{}{}
	}
	s.waiting[id][c] = struct{}{}
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waiting[id], c)
		if len(s.waiting[id]) == 0 {
			delete(s.waiting, id)
		}
	}
}

func indexed[T any](informer cache.SharedIndexInformer, index, key string) []T {
	found, err := informer.GetIndexer().ByIndex(index, key)
	if err != nil {
		panic(err) // the index is made with the informer
	}
	all := make([]T, 0, len(found))
	for _, obj := range found {
		all = append(all, obj.(T))
	}
	return all
}

// podsOf are the pods of a sandbox, the oldest first. There is more than one only where two replicas were at it.
func (s *seen) podsOf(id string) []*corev1.Pod {
	all := indexed[*corev1.Pod](s.pods, bySandbox, id)
	slices.SortFunc(all, func(a, b *corev1.Pod) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(string(a.UID), string(b.UID))
	})
	return all
}

// claim is a sandbox's workspace, the one that will stay before one that is being deleted; nil where none is known.
func (s *seen) claim(id string) *corev1.PersistentVolumeClaim {
	all := indexed[*corev1.PersistentVolumeClaim](s.claims, bySandbox, id)
	slices.SortFunc(all, func(a, b *corev1.PersistentVolumeClaim) int {
		if (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) {
			if a.DeletionTimestamp == nil {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// settle waits until the watch shows a claim as it was just written, or no more: a call that followed would otherwise judge by what was
// before.
func (s *seen) settle(ctx context.Context, c *corev1.PersistentVolumeClaim, written func(*corev1.PersistentVolumeClaim) bool) error {
	changes, stop := s.changes(idOf(c))
	defer stop()
	for {
		now := named[*corev1.PersistentVolumeClaim](s.claims, s.namespace, c.Name)
		if now == nil || now.UID != c.UID || written(now) {
			return nil
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pod by its name; nil where none is known.
func (s *seen) pod(name string) *corev1.Pod { return named[*corev1.Pod](s.pods, s.namespace, name) }

func named[T any](informer cache.SharedIndexInformer, namespace, name string) (found T) {
	obj, ok, err := informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return found
	}
	return obj.(T)
}

// eventsOf are the warnings about a pod and its claim.
func (s *seen) eventsOf(pod *corev1.Pod) []*corev1.Event {
	all := indexed[*corev1.Event](s.warnings, byObject, "Pod/"+pod.Name)
	if c := s.claim(idOf(pod)); c != nil {
		all = append(all, indexed[*corev1.Event](s.warnings, byObject, "PersistentVolumeClaim/"+c.Name)...)
	}
	return all
}

// allPods and allClaims are of this worker.
func (s *seen) allPods() []any   { return s.pods.GetStore().List() }
func (s *seen) allClaims() []any { return s.claims.GetStore().List() }
