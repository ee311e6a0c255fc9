package render_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/sandtrail/sandtrail/libs/permission"
)

// held says which secrets a pod gets, and under which keys.
func held(p pod) map[string]bool {
	all := map[string]bool{}
	for _, v := range p.spec.Volumes {
		if v.Secret == nil {
			continue
		}
		if len(v.Secret.Items) == 0 {
			all[v.Secret.SecretName] = true
		}
		for _, i := range v.Secret.Items {
			all[v.Secret.SecretName+"."+i.Key] = true
		}
	}
	for _, c := range p.spec.Containers {
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				all[e.ValueFrom.SecretKeyRef.Name+"."+e.ValueFrom.SecretKeyRef.Key] = true
			}
		}
	}
	return all
}

func TestEachPodHoldsItsOwnSecretsOnly(t *testing.T) {
	nats := []string{"sandtrail-nats-routes.password"}
	for _, r := range permission.Roles() {
		nats = append(nats, "sandtrail-nats-"+string(r)+".public") // public keys; never a seed
	}
	seed := func(r permission.Role, more ...string) []string {
		return append([]string{"sandtrail-nats-" + string(r) + ".seed"}, more...)
	}
	want := map[string][]string{
		"gateway":     seed(permission.Gateway, "sandtrail-seal", "sandtrail-api-keys"),
		"scheduler":   seed(permission.Scheduler),
		"worker":      seed(permission.Worker, "sandtrail-seal", "sandtrail-agent-lifecycle", "sandtrail-agent-ca"),
		"exec":        seed(permission.Exec, "sandtrail-seal", "sandtrail-agent-exec"),
		"usage":       seed(permission.Usage, "sandtrail-clickhouse.url"),
		"gc":          seed(permission.GC),
		"provisioner": seed(permission.Provisioner),
		"operator":    seed(permission.Operator),
		"nats":        nats,
	}
	found := map[string]bool{}
	for _, p := range pods(t, rendered(t, nil).Objects) {
		require.ElementsMatch(t, want[p.name], slices.Collect(maps.Keys(held(p))), p.name)
		found[p.name] = true
	}
	require.Len(t, found, len(want))
}

// secretLike are seeds of nkeys, keys and passwords as they would stand in a file.
var secretLike = regexp.MustCompile(`\bS[UAOCN][A-Z2-7]{56}\b|PRIVATE KEY|\b[0-9a-f]{64}\b|(?i)(password|secret|token|seed)["']?\s*[:=]\s*["'][^"'$]{6,}`)

func TestNoSecretStandsInWhatEverybodyMayRead(t *testing.T) {
	for name, v := range installations {
		t.Run(name, func(t *testing.T) {
			for _, o := range rendered(t, v).Objects {
				require.NotEqual(t, "Secret", o.GetKind(), "the chart makes none: they would stand in Helm's records")
				data, err := o.MarshalJSON()
				require.NoError(t, err)
				require.Empty(t, secretLike.FindString(string(data)), "%s %s", o.GetKind(), o.GetName())
			}
		})
	}
	require.NotEmpty(t, secretLike.FindString(`password: "hunter22"`))
}

func TestOnlyTheWorkerMayAskKubernetesAnything(t *testing.T) {
	for name, v := range installations {
		t.Run(name, func(t *testing.T) {
			r := rendered(t, v)
			for _, p := range pods(t, r.Objects) {
				require.Equal(t, p.name == "worker", *p.spec.AutomountServiceAccountToken, p.name)
				account := "trail-services"
				if p.name == "worker" {
					account = "trail-worker"
				}
				require.Equal(t, account, p.spec.ServiceAccountName, p.name)
			}
			for _, o := range r.Objects {
				var rules []rbacv1.PolicyRule
				switch x := typed(t, o).(type) {
				case *rbacv1.Role:
					require.NotEqual(t, "services", x.Namespace, "not where the secrets are")
					rules = x.Rules
				case *rbacv1.ClusterRole:
					rules = x.Rules
					require.Equal(t, []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes/stats"}, Verbs: []string{"get"}}}, rules)
				case *rbacv1.RoleBinding:
					onlyWorker(t, x.Subjects)
				case *rbacv1.ClusterRoleBinding:
					onlyWorker(t, x.Subjects)
				}
				for _, rule := range rules {
					for _, s := range slices.Concat(rule.Verbs, rule.Resources, rule.APIGroups) {
						require.NotContains(t, []string{
							"*", "secrets", "pods/exec", "pods/attach", "pods/portforward", "nodes/proxy", "roles", "rolebindings", "serviceaccounts/token",
							"escalate", "bind", "impersonate", "deletecollection",
						}, s, fmt.Sprint(rule))
					}
				}
			}
		})
	}
}

func onlyWorker(t *testing.T, subjects []rbacv1.Subject) {
	t.Helper()
	require.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Name: "trail-worker", Namespace: "services"}}, subjects)
}

// Mounted with these modes and the group of the pod, a file is readable by the process and by nobody else.
func TestSecretFilesAreForTheirProcessAlone(t *testing.T) {
	for _, p := range pods(t, rendered(t, installations["everything"]).Objects) {
		for _, v := range p.spec.Volumes {
			if v.Secret != nil {
				require.Equal(t, int32(0o440), *v.Secret.DefaultMode, "%s: %s", p.name, v.Name)
			}
		}
		require.Equal(t, int64(65532), *p.spec.SecurityContext.FSGroup, p.name)
		require.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, p.spec.SecurityContext.SeccompProfile.Type)
	}
}
