package kube

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/diagnosis"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

const (
	// firstAsk and lastAsk are between two attempts to reach an agent.
	firstAsk = 10 * time.Millisecond
	lastAsk  = 250 * time.Millisecond
	// unseenFor is how long a pod that was written may be missing in the watch before the cluster itself is asked.
	unseenFor = time.Second
)

// await returns once the agent of exactly this pod has taken the sandbox's environment, or nothing is to be hoped for any more.
func (b *birth) await(ctx context.Context, made *corev1.Pod) (runtime.Created, error) {
	changes, stop := b.d.seen.changes(b.spec.ID)
	defer stop()
	b.asked = time.Now()
	ask := firstAsk
	for {
		pod, err := b.look(ctx, made)
		if err != nil {
			return runtime.Created{}, err
		}
		wait, found := unseenFor, diagnosis.Diagnosis{Hope: true}
		if pod != nil {
			found = b.d.diagnose(pod, true)
			runtime.Report(ctx, runtime.Progress{Reason: string(found.Reason), Message: found.Message})
			if f := found.Fault(); f != nil && (!found.Hope || found.Over) {
				return runtime.Created{}, f
			}
			b.observe(pod)
			if running(pod) && pod.Status.PodIP != "" {
				met, err := b.greet(ctx, pod)
				if err == nil {
					return b.created(pod, met), nil
				}
				if hopeless(err) {
					return runtime.Created{}, silent(err)
				}
				wait, ask = ask, min(2*ask, lastAsk)
			}
		}
		again := time.NewTimer(wait)
		select {
		case <-changes:
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return runtime.Created{}, over(ctx, found)
		}
		again.Stop()
	}
}

// look gives the pod as the watch shows it; nil while it does not show it yet. One that is gone, or whose name another one has now, is an
// error; the cluster itself is asked before that is said.
func (b *birth) look(ctx context.Context, made *corev1.Pod) (*corev1.Pod, error) {
	pod := b.d.seen.pod(made.Name)
	if pod != nil && pod.UID == made.UID {
		b.shown = true
		return pod, nil
	}
	if !b.shown && time.Since(b.asked) < unseenFor {
		return nil, nil
	}
	live, err := b.d.livePod(ctx, made.Name)
	if err != nil {
		return nil, err
	}
	if live == nil || live.UID != made.UID {
		lost := diagnosis.Of(diagnosis.Observed{Starting: true}).Fault()
		if live != nil {
			lost = lost.Because(errReplaced)
		}
		return nil, lost
	}
	b.asked, b.shown = time.Now(), false
	return nil, nil
}

// observe marks how far the pod has come.
func (b *birth) observe(pod *corev1.Pod) {
	if pod.Spec.NodeName != "" {
		b.mark("scheduled")
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue {
			b.mark("network")
		}
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
			b.mark("toolbox")
		}
	}
	if running(pod) {
		b.mark("started")
	}
}

// greet tells the agent whose sandbox it is and the environment of its programs. It may be told the same again.
func (b *birth) greet(ctx context.Context, pod *corev1.Pod) (runtime.Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	met, err := b.d.o.Agents.Meet(ctx, *b.d.endpoint(pod))
	if err != nil {
		return met, err
	}
	_, err = b.d.o.Agents.Client(met).Configure(ctx, &toolboxv1.Configure{SandboxId: b.spec.ID, Env: b.spec.Env})
	return met, err
}

// hopeless: an agent that is another sandbox's, or was given another environment, never becomes this one's.
func hopeless(err error) bool {
	var answer *client.Error
	return errors.As(err, &answer) && fault.Reason(answer.Reason) == fault.ReasonIllegalState
}

func (b *birth) created(pod *corev1.Pod, met runtime.Endpoint) runtime.Created {
	b.mark("answered")
	b.d.seen.know(b.spec.ID, met)
	return runtime.Created{RuntimeID: pod.Name, ImageDigest: imageDigest(pod), Phases: b.phases(), Endpoint: &met}
}

// imageDigest is what the runtime says it runs: registry/repository@sha256:… or the digest alone.
func imageDigest(pod *corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == manifest.Container {
			if _, digest, found := strings.Cut(s.ImageID, "@"); found {
				return digest
			}
			return s.ImageID
		}
	}
	return ""
}

// know notes which pod answered for a sandbox, so that a later one in its place does not pass for it; forget drops it.
func (s *seen) know(id string, met runtime.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.met[id] = met
}

func (s *seen) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.met, id)
}

// metFor is what answered for a sandbox; empty where nothing has since this process began.
func (s *seen) metFor(id string) runtime.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.met[id]
}

// another reports whether the pod is not the one that answered for its sandbox.
func (s *seen) another(pod *corev1.Pod) bool {
	met := s.metFor(idOf(pod))
	return met.UID != "" && met.UID != string(pod.UID)
}
