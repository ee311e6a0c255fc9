package render_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	security "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/sandtrail/sandtrail/deploy/k8s/images"
	"github.com/sandtrail/sandtrail/deploy/k8s/render"
)

const dir = ".."

type values = map[string]any

// installations are the ways in which people install the chart.
var installations = map[string]values{
	"as it is": nil,
	"small": {
		"gateway": values{"replicas": 1}, "scheduler": values{"replicas": 1}, "worker": values{"replicas": 1, "kubeletStats": false},
		"nats": values{"replicas": 1}, "usage": values{"enabled": false}, "networkPolicies": values{"enabled": false},
	},
	"everything": {
		"autoscaling": values{"enabled": true},
		"monitoring":  values{"serviceMonitors": true, "alerts": true, "dashboard": true, "labels": values{"release": "prometheus"}},
		"nats":        values{"tls": values{"secret": "nats-tls"}, "storage": values{"className": "fast"}},
		"sandboxes":   values{"profiles": values{"large": values{"nodeSelector": values{"pool": "large"}}}, "tenants": values{"acme": "large"}, "runtimeClass": values{"create": true, "nodeSelector": values{"sandtrail.dev/gvisor": "yes"}}, "quota": values{"requests.cpu": "100", "pods": 500}},
		"image":       values{"pullSecrets": []any{"registry"}, "tag": "v1.2.3"}, "otlpEndpoint": "traces.observability:4317",
		"gc": values{"webhooks": true}, "nodeSelector": values{"pool": "services"}, "tolerations": []any{values{"key": "services", "operator": "Exists"}},
		"networkPolicies": values{
			"gatewayFrom": []any{values{"namespaceSelector": values{"matchLabels": values{"name": "agents"}}}},
			"natsFrom":    []any{values{"ipBlock": values{"cidr": "192.0.2.0/24"}}},
			"metricsFrom": []any{values{"namespaceSelector": values{"matchLabels": values{"name": "observability"}}}},
		},
		"gateway": values{
			"service": values{"type": "LoadBalancer", "annotations": values{"a": "b"}}, "tls": values{"secret": "api.example.com"},
			"jwt": values{
				"jwksURL": "https://issuer.example.com:8443/keys", "issuer": "https://issuer.example.com", "audience": "sandtrail", "tenantClaim": "/org/id",
				"tenants": values{"17": "acme"}, "scopes": values{"developer": "create+execute"}, "authority": "issuers",
			},
		},
	},
	"a NATS that is there": {
		"nats": values{"enabled": false, "url": "tls://nats.example.com:4443", "tls": values{"secret": "nats-tls"}}, "worker": values{"name": "eu-1", "region": "eu"},
		"sandboxes": values{"create": false, "namespace": "boxes"},
	},
}

func rendered(t *testing.T, v values) render.Rendered {
	t.Helper()
	r, err := render.Chart(dir+"/chart", render.Release{Name: "trail", Namespace: "services"}, v)
	require.NoError(t, err)
	require.NotEmpty(t, r.Objects)
	require.NotEmpty(t, r.Tests)
	r.Objects = append(r.Objects, r.Tests...)
	return r
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	require.NoError(t, kubernetes.AddToScheme(s))
	require.NoError(t, monitoringv1.AddToScheme(s))
	return s
}

// typed decodes as the API server does with strict field validation: an unknown field or one of a wrong type is an error.
func typed(t *testing.T, o unstructured.Unstructured) runtime.Object {
	t.Helper()
	data, err := o.MarshalJSON()
	require.NoError(t, err)
	codecs := serializer.NewCodecFactory(scheme(t), serializer.EnableStrict)
	object, _, err := codecs.UniversalDeserializer().Decode(data, nil, nil)
	require.NoError(t, err, "%s %s", o.GetKind(), o.GetName())
	return object
}

func TestEachObjectIsOneThatKubernetesTakes(t *testing.T) {
	for name, v := range installations {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for _, o := range rendered(t, v).Objects {
				typed(t, o)
				id := fmt.Sprint(o.GetKind(), "/", o.GetNamespace(), "/", o.GetName())
				require.False(t, seen[id], "%s twice", id)
				seen[id] = true
				require.NotEmpty(t, o.GetLabels()["app.kubernetes.io/part-of"], id)
				if !slices.Contains([]string{"Namespace", "ClusterRole", "ClusterRoleBinding", "RuntimeClass"}, o.GetKind()) {
					require.NotEmpty(t, o.GetNamespace(), id)
				}
			}
		})
	}
}

func TestUnknownFieldsAreSeen(t *testing.T) {
	codecs := serializer.NewCodecFactory(scheme(t), serializer.EnableStrict)
	_, _, err := codecs.UniversalDeserializer().Decode([]byte(`{"apiVersion":"v1","kind":"Pod","spec":{"contaners":[]}}`), nil, nil)
	require.ErrorContains(t, err, "contaners")
}

// pod is a pod, or the template of one, and the name of who makes it.
type pod struct {
	name string
	meta metav1.ObjectMeta
	spec corev1.PodSpec
}

func pods(t *testing.T, all []unstructured.Unstructured) []pod {
	t.Helper()
	var found []pod
	for _, o := range all {
		var template corev1.PodTemplateSpec
		switch x := typed(t, o).(type) {
		case *appsv1.Deployment:
			template = x.Spec.Template
		case *appsv1.StatefulSet:
			template = x.Spec.Template
		case *batchv1.Job:
			template = x.Spec.Template
		case *batchv1.CronJob:
			template = x.Spec.JobTemplate.Spec.Template
		case *corev1.Pod:
			template = corev1.PodTemplateSpec{ObjectMeta: x.ObjectMeta, Spec: x.Spec}
		default:
			continue
		}
		found = append(found, pod{name: strings.TrimPrefix(template.Labels["app.kubernetes.io/name"], "sandtrail-"), meta: template.ObjectMeta, spec: template.Spec})
	}
	return found
}

func TestPodsKeepToTheRestrictedStandard(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	restricted := security.LevelVersion{Level: security.LevelRestricted, Version: security.LatestVersion()}
	for name, v := range installations {
		t.Run(name, func(t *testing.T) {
			all := pods(t, rendered(t, v).Objects)
			require.Greater(t, len(all), 5)
			for _, p := range all {
				for _, r := range evaluator.EvaluatePod(restricted, &p.meta, &p.spec) {
					require.True(t, r.Allowed, "%s: %s %s", p.name, r.ForbiddenReason, r.ForbiddenDetail)
				}
				for _, c := range p.spec.Containers {
					require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, p.name)
					require.NotEmpty(t, c.Resources.Requests, p.name)
					require.NotEmpty(t, c.Resources.Limits.Memory(), p.name)
				}
			}
		})
	}
	bad := corev1.PodSpec{Containers: []corev1.Container{{Name: "x"}}}
	require.True(t, slices.ContainsFunc(evaluator.EvaluatePod(restricted, &metav1.ObjectMeta{}, &bad), func(r policy.CheckResult) bool { return !r.Allowed }))
}

func TestProcessesThatServeAreProbed(t *testing.T) {
	for _, p := range pods(t, rendered(t, nil).Objects) {
		if slices.Contains([]string{"gc", "provisioner", "operator"}, p.name) {
			require.Nil(t, p.spec.Containers[0].ReadinessProbe, "%s ends by itself", p.name)
			continue
		}
		for _, c := range p.spec.Containers {
			require.NotNil(t, c.StartupProbe, p.name)
			require.NotNil(t, c.LivenessProbe, p.name)
			require.NotNil(t, c.ReadinessProbe, p.name)
			named := slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.Name == c.ReadinessProbe.HTTPGet.Port.StrVal })
			require.True(t, named, "%s is asked on a port that it has", p.name)
		}
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	for name, v := range map[string]values{
		"unknown":                   {"gatway": values{}},
		"unknown below":             {"nats": values{"replica": 3}},
		"two servers":               {"nats": values{"replicas": 2}},
		"no address":                {"nats": values{"enabled": false}},
		"a password in a URL":       {"nats": values{"enabled": false, "url": "nats://user:secret@nats:4222"}},
		"another scheme":            {"nats": values{"enabled": false, "url": "http://nats"}},
		"name of a worker":          {"worker": values{"name": "a.b"}},
		"a long worker":             {"worker": values{"name": strings.Repeat("w", 41)}},
		"no duration":               {"worker": values{"startDeadline": "soon"}},
		"a flag that is none":       {"exec": values{"extraArgs": []any{"rm"}}},
		"namespace":                 {"sandboxes": values{"namespace": "A_B"}},
		"port of the privileged":    {"sandboxes": values{"agentPort": 80}},
		"schedule":                  {"gc": values{"schedule": "now"}},
		"no replicas":               {"gateway": values{"replicas": 0}},
		"level":                     {"logLevel": "trace"},
		"keys in clear":             {"gateway": values{"jwt": values{"jwksURL": "http://issuer/keys", "issuer": "i", "audience": "a"}}},
		"a password for keys":       {"gateway": values{"jwt": values{"jwksURL": "https://user:secret@issuer/keys", "issuer": "i", "audience": "a"}}},
		"tokens for anybody":        {"gateway": values{"jwt": values{"jwksURL": "https://issuer/keys", "issuer": "i"}}},
		"two claims in one":         {"gateway": values{"jwt": values{"tenants": values{"a;b": "acme"}}}},
		"subscribers of no account": {"nats": values{"subscribers": []any{values{"name": "a", "tenant": "acme", "nkey": "U" + strings.Repeat("A", 55)}}}},
		"a seed":                    {"nats": values{"account": "LOG", "subscribers": []any{values{"name": "a", "tenant": "acme", "nkey": "SU" + strings.Repeat("A", 56)}}}},
		"all tenants":               {"nats": values{"account": "LOG", "subscribers": []any{values{"name": "a", "tenant": "*", "nkey": "U" + strings.Repeat("A", 55)}}}},
		"the account of the system": {"nats": values{"account": "$SYS"}},
		"a quantity":                {"nats": values{"storage": values{"size": "much"}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render.Chart(dir+"/chart", render.Release{Name: "trail", Namespace: "services"}, v)
			require.ErrorContains(t, err, "values")
		})
	}
}

func TestNotesSayWhatIsMissing(t *testing.T) {
	require.Contains(t, rendered(t, nil).Notes, "sandtrail secrets --namespace services --name sandtrail")
	require.NotContains(t, rendered(t, nil).Notes, "NATS is one server")
	require.Contains(t, rendered(t, installations["small"]).Notes, "NATS is one server")
}

func TestTheGatewayEndsTLSAndReachesTheIssuerOfTokens(t *testing.T) {
	var policy *networkingv1.NetworkPolicy
	var service *corev1.Service
	all := rendered(t, installations["everything"]).Objects
	for _, o := range all {
		switch x := typed(t, o).(type) {
		case *networkingv1.NetworkPolicy:
			if strings.HasSuffix(x.Name, "-gateway") {
				policy = x
			}
		case *corev1.Service:
			if strings.HasSuffix(x.Name, "-gateway") {
				service = x
			}
		}
	}
	require.EqualValues(t, 8443, policy.Spec.Egress[0].Ports[0].Port.IntVal)
	for _, port := range service.Spec.Ports {
		require.Equal(t, "https", *port.AppProtocol, port.Name)
	}
	for _, p := range pods(t, all) {
		held := map[string]string{}
		for _, v := range p.spec.Volumes {
			if v.Secret != nil {
				held[v.Secret.SecretName] = v.Name
			}
		}
		_, shows := held["api.example.com"]
		require.Equal(t, p.name == "gateway", shows, "%s", p.name)
		if !shows {
			continue
		}
		c := p.spec.Containers[0]
		for _, arg := range []string{
			"--tls-cert=/secrets/tls/tls.crt", "--tls-key=/secrets/tls/tls.key", "--jwks-url=https://issuer.example.com:8443/keys",
			"--jwt-issuer=https://issuer.example.com", "--jwt-audience=sandtrail", "--jwt-skew=30s", "--jwt-tenant-claim=/org/id", "--jwt-scope-claim=scope",
			"--jwt-tenants=17=acme", "--jwt-scopes=developer=create+execute",
		} {
			require.Contains(t, c.Args, arg)
		}
		require.Contains(t, c.Env, corev1.EnvVar{Name: "SSL_CERT_DIR", Value: "/authority"})
		require.NotEqual(t, corev1.URISchemeHTTPS, c.ReadinessProbe.HTTPGet.Scheme, "health has an address of its own, in clear")
	}
}

// With webhooks gc goes on, is probed, holds the key of their secrets, and reaches what is on the internet and nothing that is near.
func TestWebhooksAreSentByAGcThatGoesOn(t *testing.T) {
	objects := rendered(t, values{"gc": values{"webhooks": true}}).Objects
	var found bool
	for _, p := range pods(t, objects) {
		if p.name != "gc" {
			continue
		}
		found = true
		c := p.spec.Containers[0]
		require.Contains(t, c.Args, "--webhook-key-file=/secrets/webhook/webhook.key")
		require.NotContains(t, c.Args, "--once")
		require.NotContains(t, c.Args, "--webhook-private")
		require.NotNil(t, c.ReadinessProbe)
		_, holds := held(p)["sandtrail-webhook"]
		require.True(t, holds)
	}
	require.True(t, found)
	var out *networkingv1.NetworkPolicy
	for _, o := range objects {
		require.NotEqual(t, "CronJob", o.GetKind(), "two of them would do the same")
		if n, ok := typed(t, o).(*networkingv1.NetworkPolicy); ok && strings.HasSuffix(n.Name, "-webhooks") {
			out = n
		}
	}
	require.NotNil(t, out)
	for _, to := range out.Spec.Egress[0].To {
		require.NotNil(t, to.IPBlock, "no pod of the cluster")
		_, block, err := net.ParseCIDR(to.IPBlock.CIDR)
		require.NoError(t, err)
		for _, near := range []string{"10.1.2.3", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1", "192.168.1.1", "fd00::1", "fe80::1", "::1"} {
			open := block.Contains(net.ParseIP(near)) && !slices.ContainsFunc(to.IPBlock.Except, func(except string) bool {
				_, no, err := net.ParseCIDR(except)
				return err == nil && no.Contains(net.ParseIP(near))
			})
			require.False(t, open, near)
		}
	}
	for _, o := range rendered(t, nil).Objects {
		require.False(t, strings.HasSuffix(o.GetName(), "-webhooks"), "unless it is asked for")
	}
}

func TestEachImageIsOneThatIsBuilt(t *testing.T) {
	built := map[string]bool{}
	for _, p := range images.Programs() {
		built["registry.example.com/sandtrail/sandtrail-"+p.Name+":v1.2.3"] = true
	}
	for _, p := range pods(t, rendered(t, installations["everything"]).Objects) {
		for _, c := range p.spec.Containers {
			require.True(t, built[c.Image], c.Image)
		}
	}
}
