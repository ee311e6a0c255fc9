package kube

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
)

// TestACreateWritesPodAndClaimAndNothingElse: no other request is made between the call and its answer, not even a read.
func TestACreateWritesPodAndClaimAndNothingElse(t *testing.T) {
	c := newCluster(t)
	d := c.driver()
	s := spec()
	c.client.ClearActions()
	made, err := d.Create(limit(t), s)
	require.NoError(t, err)
	require.Len(t, c.client.Actions(), 2)
	require.Equal(t, []string{"create persistentvolumeclaims", "create pods"}, c.took())

	pod := c.pods()[manifest.PodName(s.ID, 0)]
	require.Equal(t, pod.Name, made.RuntimeID)
	require.Equal(t, "sha256:abc", made.ImageDigest)
	require.Equal(t, &runtime.Endpoint{Address: "10.1.2.3:7070", Runtime: pod.Name, UID: string(pod.UID), KeySHA256: []byte("key of " + pod.UID)}, made.Endpoint)
	var names []string
	for _, p := range made.Phases {
		names = append(names, p.Name)
		require.GreaterOrEqual(t, p.Took, time.Duration(0))
	}
	require.Equal(t, []string{"written", "scheduled", "network", "started", "answered"}, names)
	require.Equal(t, s.Env, c.agents.of(string(pod.UID)).taken.Env)
	require.Equal(t, s.ID, c.agents.of(string(pod.UID)).taken.SandboxId)

	again, err := d.Create(limit(t), s)
	require.NoError(t, err)
	require.Equal(t, made.Endpoint, again.Endpoint)
	second, err := c.driver().Create(limit(t), s)
	require.NoError(t, err, "another replica finds it")
	require.Equal(t, made.Endpoint, second.Endpoint)
	require.Empty(t, c.took())
}

// TestNamesOfOthers: whatever another sandbox has under the names that this one would have, known before or made in the same moment,
// this one gets other names, and what is another's stays as it is and is never mounted.
func TestNamesOfOthers(t *testing.T) {
	for name, race := range map[string]bool{"known": false, "in the same moment": true} {
		for what, put := range map[string]struct{ pod, claim bool }{"pod": {pod: true}, "claim": {claim: true}, "both": {true, true}} {
			t.Run(what+" "+name, func(t *testing.T) {
				c := newCluster(t)
				s := spec()
				pod, claim := foreign(s, 0)
				putPod, putClaim := func() { c.put(pod) }, func() { c.put(claim) }
				if race {
					if put.pod {
						c.before["create pods"] = putPod
					}
					if put.claim {
						c.before["create persistentvolumeclaims"] = putClaim
					}
				} else {
					if put.pod {
						putPod()
					}
					if put.claim {
						putClaim()
					}
				}
				made, err := c.driver().Create(limit(t), s)
				require.NoError(t, err)
				require.Equal(t, manifest.PodName(s.ID, 1), made.RuntimeID)
				pods, claims := c.pods(), c.claims()
				mine := pods[made.RuntimeID]
				mounted := claims[claimOf(&mine)]
				require.True(t, isOf(&mounted, s.ID), "it mounts its own claim")
				require.Equal(t, string(mine.UID), made.Endpoint.UID)
				if put.pod {
					require.Equal(t, *pod, pods[pod.Name])
				}
				if put.claim {
					require.Equal(t, *claim, claims[claim.Name])
				}
				for _, p := range pods {
					if isOf(&p, s.ID) {
						require.Equal(t, mine.Name, p.Name, "no second pod is left")
					}
				}
			})
		}
	}
}

// TestLostAnswers: whatever an API server or the network does to the answer of a write, there is one pod and one claim in the end.
func TestLostAnswers(t *testing.T) {
	group := corev1.Resource("pods")
	answers := map[string]error{
		"connection lost": errors.New("read: connection reset by peer"), "timeout": apierrors.NewTimeoutError("slow", 0), "too many": apierrors.NewTooManyRequests("busy", 0),
		"server timeout": apierrors.NewServerTimeout(group, "create", 0), "internal": apierrors.NewInternalError(errors.New("etcd")), "unavailable": apierrors.NewServiceUnavailable("down"),
	}
	for name, answer := range answers {
		for _, key := range []string{"create pods", "create persistentvolumeclaims"} {
			t.Run(key+" "+name, func(t *testing.T) {
				c := newCluster(t)
				left := 1
				c.after[key] = func(error) error {
					if left == 0 {
						return nil
					}
					left--
					return answer
				}
				s := spec()
				d := c.driver()
				_, err := d.Create(limit(t), s)
				require.NoError(t, err)
				require.Len(t, c.pods(), 1)
				require.Len(t, c.claims(), 1)
				writes := 0
				for _, w := range c.took() {
					if w == key {
						writes++
					}
				}
				require.Equal(t, 1, writes, "what was written was found and not written again")
			})
		}
	}
}

// TestARefusalIsNoRetry: what the cluster refuses is told with its reason, once, and nothing is left.
func TestARefusalIsNoRetry(t *testing.T) {
	c := newCluster(t)
	refuse := apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("exceeded quota: compute, requested: pods=1, used: pods=10, limited: pods=10"))
	c.client.PrependReactor("create", "pods", func(k8stesting.Action) (bool, k8sruntime.Object, error) { return true, nil, refuse })
	_, err := c.driver().Create(limit(t), spec())
	require.True(t, fault.Is(err, fault.ReasonQuota), "%v", err)
	require.Empty(t, c.pods())
}

// TestAnotherPodUnderTheNameIsNeverAdopted, neither while the sandbox starts nor once it ran.
func TestAnotherPodUnderTheNameIsNeverAdopted(t *testing.T) {
	replace := func(c *cluster, pod *corev1.Pod) {
		c.remove(pod)
		twin := pod.DeepCopy()
		twin.UID, twin.ResourceVersion, twin.DeletionTimestamp = "", "", nil
		c.put(twin)
		c.run(twin)
	}
	t.Run("starting", func(t *testing.T) {
		c := newCluster(t)
		c.kubelet = func(p *corev1.Pod) {
			c.kubelet = c.run
			replace(c, p)
		}
		s := spec()
		_, err := c.driver().Create(limit(t), s)
		require.True(t, fault.Is(err, fault.ReasonSandboxLost), "%v", err)
		require.Empty(t, c.pods(), "what bears its id is removed")
	})
	t.Run("ready", func(t *testing.T) {
		c := newCluster(t)
		d := c.driver()
		s := spec()
		made, err := d.Create(limit(t), s)
		require.NoError(t, err)
		pod := c.pods()[made.RuntimeID]
		replace(c, &pod)
		require.Eventually(t, func() bool {
			st, err := d.Inspect(limit(t), s.ID)
			return err == nil && st.Exists && !st.Alive && st.Reason == string(fault.ReasonSandboxLost)
		}, 30*time.Second, 5*time.Millisecond)
		_, err = d.Dial(limit(t), s.ID)
		require.Equal(t, fault.NotFound, fault.CodeOf(err))
		_, err = d.Destroy(limit(t), s.ID)
		require.NoError(t, err)
		require.Empty(t, c.pods())
	})
}

// TestHalfMade: whatever an interrupted create left, the next one finishes or replaces it.
func TestHalfMade(t *testing.T) {
	for name, left := range map[string]func(s runtime.Spec) (pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, kept bool){
		"pod alone": func(s runtime.Spec) (*corev1.Pod, *corev1.PersistentVolumeClaim, bool) {
			return half(s, 0).pod, nil, true
		},
		"claim alone": func(s runtime.Spec) (*corev1.Pod, *corev1.PersistentVolumeClaim, bool) {
			return nil, half(s, 0).claim, false
		},
		"both under a later name": func(s runtime.Spec) (*corev1.Pod, *corev1.PersistentVolumeClaim, bool) {
			return half(s, 2).pod, half(s, 2).claim, true
		},
		"a pod of another image": func(s runtime.Spec) (*corev1.Pod, *corev1.PersistentVolumeClaim, bool) {
			s.Image = "docker.io/library/busybox:1"
			return half(s, 0).pod, half(s, 0).claim, false
		},
		"a pod that has ended": func(s runtime.Spec) (*corev1.Pod, *corev1.PersistentVolumeClaim, bool) {
			h := half(s, 0)
			h.pod.Status.Phase = corev1.PodFailed
			return h.pod, h.claim, false
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			s, err := manifest.Check(config().WithDefaults(), spec())
			require.NoError(t, err)
			pod, claim, kept := left(s)
			if claim != nil {
				c.put(claim)
			}
			if pod != nil {
				c.put(pod)
				if pod.Status.Phase == "" {
					c.run(pod)
				}
			}
			made, err := c.driver().Create(limit(t), s)
			require.NoError(t, err)
			require.Len(t, c.pods(), 1)
			require.Len(t, c.claims(), 1)
			now := c.pods()[made.RuntimeID]
			if pod != nil {
				require.Equal(t, kept, now.UID == pod.UID)
			}
			require.Contains(t, c.claims(), claimOf(&now))
		})
	}
}

type objects struct {
	pod   *corev1.Pod
	claim *corev1.PersistentVolumeClaim
}

func half(s runtime.Spec, attempt int) objects {
	c := config().WithDefaults()
	name := manifest.ClaimName(s.ID, attempt)
	return objects{manifest.Pod(c, "east", manifest.PodName(s.ID, attempt), name, s), manifest.Claim(c, "east", name, s)}
}

// TestACreateThatFailsLeavesOnlyTheWorkspace: given up at any time, or hopeless.
func TestACreateThatFailsLeavesOnlyTheWorkspace(t *testing.T) {
	t.Run("given up while it waits", func(t *testing.T) {
		c := newCluster(t)
		ctx, give := context.WithCancel(limit(t))
		c.kubelet = func(*corev1.Pod) { give() }
		_, err := c.driver().Create(ctx, spec())
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, c.pods())
		for _, claim := range c.claims() {
			require.Empty(t, claim.DeletionTimestamp, "what was written stays")
		}
	})
	t.Run("given up while it writes", func(t *testing.T) {
		c := newCluster(t)
		ctx, give := context.WithCancel(limit(t))
		c.before["create pods"] = give
		c.after["create pods"] = func(error) error { return errors.New("connection lost") }
		_, err := c.driver().Create(ctx, spec())
		require.Error(t, err)
		require.Empty(t, c.pods())
	})
	t.Run("an image that cannot be", func(t *testing.T) {
		c := newCluster(t)
		c.kubelet = func(p *corev1.Pod) {
			go c.status(p, func(p *corev1.Pod) {
				p.Spec.NodeName = "node"
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: manifest.Container, State: corev1.ContainerState{
					Waiting: &corev1.ContainerStateWaiting{Reason: "InvalidImageName", Message: "couldn't parse"},
				}}}
			})
		}
		_, err := c.driver().Create(limit(t), spec())
		require.True(t, fault.Is(err, fault.ReasonImageInvalid), "%v", err)
		require.Empty(t, c.pods())
	})
}

// TestAnEndIsToldWhenItIsSeen: a destroy waits for the kubelet, marks the workspace once, and a new life takes the mark away.
func TestAnEndIsToldWhenItIsSeen(t *testing.T) {
	c := newCluster(t)
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	d := c.driver(func(o *Options) { o.Now = func() time.Time { return now } })
	s := spec()
	_, err := d.Create(limit(t), s)
	require.NoError(t, err)
	ending := make(chan *corev1.Pod, 1)
	c.end = func(p *corev1.Pod) { ending <- p }
	short, give := context.WithCancel(limit(t))
	done := make(chan error, 1)
	go func() {
		_, err := d.Destroy(short, s.ID)
		done <- err
	}()
	pod := <-ending
	give()
	require.Error(t, <-done, "it is not gone")
	require.Equal(t, fault.Conflict, fault.CodeOf(d.DeleteWorkspace(limit(t), s.ID)), "while its pod is there")
	go func() {
		_, err := d.Destroy(limit(t), s.ID)
		done <- err
	}()
	require.Never(t, func() bool { return len(done) > 0 }, 100*time.Millisecond, 10*time.Millisecond)
	c.remove(pod)
	require.NoError(t, <-done)

	mark := func() string {
		claim := c.claims()[manifest.ClaimName(s.ID, 0)]
		return claim.Annotations[manifest.AnnotationDeleteAfter]
	}
	require.Equal(t, "2026-05-02T12:00:00Z", mark())
	now = now.Add(time.Hour)
	u, err := d.Destroy(limit(t), s.ID)
	require.NoError(t, err)
	require.Zero(t, u)
	require.Equal(t, "2026-05-02T12:00:00Z", mark(), "the first mark counts")

	_, err = d.Create(limit(t), s)
	require.NoError(t, err)
	require.Empty(t, mark(), "a living sandbox's workspace is not to be removed")
	c.end = func(p *corev1.Pod) { go c.remove(p) }
	u, err = d.Destroy(limit(t), s.ID)
	require.NoError(t, err)
	require.Equal(t, uint64(7), u.CPUMillis)
	after := func() time.Time {
		at, err := d.DeleteAfter(limit(t), s.ID)
		require.NoError(t, err)
		return at
	}
	require.Equal(t, now.Add(24*time.Hour), after())
	c.annotate(manifest.ClaimName(s.ID, 0), "2026-06-01T00:00:00Z")
	require.Equal(t, time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC), after(), "somebody has put it off")
	c.annotate(manifest.ClaimName(s.ID, 0), "some day")
	_, err = d.DeleteAfter(limit(t), s.ID)
	require.ErrorContains(t, err, "no time")
	require.NoError(t, d.DeleteWorkspace(limit(t), s.ID))
	require.Zero(t, after())
	require.NoError(t, d.DeleteWorkspace(limit(t), s.ID))
	require.Empty(t, c.claims())
}

// TestThePolicyIsPutRight at each start, whatever somebody made of it.
func TestThePolicyIsPutRight(t *testing.T) {
	c := newCluster(t)
	c.driver()
	policies := c.client.NetworkingV1().NetworkPolicies(namespace)
	p, err := policies.Get(t.Context(), manifest.PolicyName, metav1.GetOptions{})
	require.NoError(t, err)
	want := p.Spec.DeepCopy()
	require.Len(t, want.PolicyTypes, 2)
	p.Spec.PolicyTypes = p.Spec.PolicyTypes[:1]
	_, err = policies.Update(t.Context(), p, metav1.UpdateOptions{FieldManager: "somebody"})
	require.NoError(t, err)
	c.driver()
	p, err = policies.Get(t.Context(), manifest.PolicyName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, *want, p.Spec)
}
