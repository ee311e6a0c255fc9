package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/diagnosis"
)

// errTaken: what has the name belongs to another sandbox, or to somebody else.
var errTaken = errors.New("the name is taken")

// requestAttempts bounds the attempts of one request; with their pauses they take about ten seconds.
const requestAttempts = 7

// may reports whether a request that failed so may succeed if it is made again. Whether it had its effect is open.
func may(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return err != nil // no answer: the connection broke, or took too long
	}
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsUnexpectedServerError(err) || answer.Status().Code >= 500
}

// pause before the next attempt, at random so that those who were refused together do not come back together, and not before the server
// asks for it.
func pause(ctx context.Context, attempt int, err error) error {
	wait := time.Duration(float64(50*time.Millisecond<<attempt) * (0.5 + rand.Float64()))
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		wait = max(wait, time.Duration(seconds)*time.Second)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retry makes a request that may be made twice until it succeeds, is refused, or ctx ends. Errors are faults, or the context's.
func (d *Driver) retry(ctx context.Context, request func(context.Context) error) error {
	for attempt := 0; ; attempt++ {
		one, cancel := context.WithTimeout(ctx, writeTimeout)
		err := request(one)
		cancel()
		if err == nil {
			return nil
		}
		again := may(err) || apierrors.IsConflict(err)
		if !again || attempt == requestAttempts-1 || ctx.Err() != nil || pause(ctx, attempt, err) != nil {
			return diagnosis.Refused(err)
		}
	}
}

// object is what creations make.
type object[T any] interface {
	*T
	metav1.Object
}

// creation of a named object for a sandbox.
type creation[T any, P object[T]] struct {
	id, name string
	create   func(context.Context) (P, error)
	get      func(context.Context) (P, error)
}

// make makes the object, or finds that an earlier attempt or another replica has made it for the same sandbox. Where the answer was lost
// it looks first, before it asks again. An object of another sandbox is errTaken. The outcome of a write under way is waited for even
// if ctx ends, so that an object may be left only where the error is no refusal.
func (c creation[T, P]) make(ctx context.Context) (P, error) {
	write := context.WithoutCancel(ctx)
	for attempt := 0; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		one, cancel := context.WithTimeout(write, writeTimeout)
		made, err := c.create(one)
		cancel()
		if err == nil {
			return made, nil
		}
		lost := may(err)
		if !lost && !apierrors.IsAlreadyExists(err) {
			return nil, diagnosis.Refused(err)
		}
		if found, look := c.find(write); look == nil || errors.Is(look, errTaken) {
			return found, look
		}
		if attempt == requestAttempts-1 {
			return nil, diagnosis.Refused(err)
		}
		if e := pause(ctx, attempt, err); e != nil {
			return nil, e
		}
	}
}

// find reads the object back.
func (c creation[T, P]) find(ctx context.Context) (P, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	found, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	if !isOf(found, c.id) {
		return nil, errTaken
	}
	return found, nil
}

func (d *Driver) makePod(ctx context.Context, id string, pod *corev1.Pod) (*corev1.Pod, error) {
	pods := d.o.Client.CoreV1().Pods(pod.Namespace)
	return creation[corev1.Pod, *corev1.Pod]{
		id: id, name: pod.Name,
		create: func(ctx context.Context) (*corev1.Pod, error) {
			return pods.Create(ctx, pod, metav1.CreateOptions{FieldManager: Owner})
		},
		get: func(ctx context.Context) (*corev1.Pod, error) { return pods.Get(ctx, pod.Name, metav1.GetOptions{}) },
	}.make(ctx)
}

func (d *Driver) makeClaim(ctx context.Context, id string, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	claims := d.o.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	return creation[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]{
		id: id, name: claim.Name,
		create: func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
			return claims.Create(ctx, claim, metav1.CreateOptions{FieldManager: Owner})
		},
		get: func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
			return claims.Get(ctx, claim.Name, metav1.GetOptions{})
		},
	}.make(ctx)
}

// livePod reads a pod past the cache; nil where there is none of the name.
func (d *Driver) livePod(ctx context.Context, name string) (pod *corev1.Pod, err error) {
	err = d.retry(ctx, func(ctx context.Context) error {
		pod, err = d.o.Client.CoreV1().Pods(d.o.Config.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			pod, err = nil, nil
		}
		return err
	})
	return pod, err
}

// deletePod asks for the end of exactly this pod.
func (d *Driver) deletePod(ctx context.Context, pod *corev1.Pod) error {
	return d.retry(ctx, func(ctx context.Context) error {
		err := d.o.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		if gone(err) {
			return nil
		}
		return err
	})
}

// gone: the object is no longer there, or its name has another one now, which a precondition has saved.
func gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }
