package manifest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
)

var update = flag.Bool("update", false, "write the golden files anew")

const id = "0f6f5c1e-6d0e-4a53-9d8b-7b0a3d3d9c11"

func config() Config {
	return Config{
		Namespace: "sandboxes", ServicesNamespace: "sandtrail", ClientCA: "CA", Toolbox: Toolbox{Image: "registry.example/sandtrail/toolbox:1"},
		Profiles: map[string]Profile{"large": {
			RuntimeClass: "gvisor-kvm", StorageClass: "fast", AccessMode: corev1.ReadWriteOncePod, UID: 2000, GID: 3000,
			NodeSelector: map[string]string{"pool": "large"}, PriorityClass: "sandboxes", PullSecrets: []string{"acme-registry"},
			Tolerations: []corev1.Toleration{{Key: "sandboxes", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
			PullPolicy:  corev1.PullAlways, Registries: []string{"docker.io/library", "registry.example"},
			CPURequest: 25, MemoryRequest: 50, StorageRequest: 10, StorageBytes: 8 << 30, SlackSeconds: 60, GraceSeconds: 5,
			TopologySpread: []corev1.TopologySpreadConstraint{}, Annotations: map[string]string{"example.org/cost": "acme"},
		}},
		Tenants: map[string]string{"acme": "large"},
	}
}

func spec(tenant string) runtime.Spec {
	return runtime.Spec{
		ID: id, Tenant: tenant, Image: "python:3.13", Hostname: "sandbox-0f6f5c1e", MountPath: "/home/$(USER)",
		Env: map[string]string{"TOKEN": "canary"}, WorkspaceBytes: 5 << 30, CPUMillis: 1500, MemoryBytes: 1 << 30, PIDs: 64, MaxRuntime: 90*time.Minute + time.Millisecond,
	}
}

// golden compares an object with what stands in testdata.
func golden(t *testing.T, file string, object any) {
	t.Helper()
	got, err := yaml.Marshal(object)
	require.NoError(t, err)
	file = filepath.Join("testdata", file)
	if *update {
		require.NoError(t, os.WriteFile(file, got, 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

func TestWhatIsWritten(t *testing.T) {
	c := config().WithDefaults()
	image := c
	image.Toolbox.Source = SourceImage
	for file, test := range map[string]struct {
		config Config
		tenant string
	}{"default": {c, "someone"}, "large": {c, "acme"}, "image-volume": {image, "someone"}} {
		t.Run(file, func(t *testing.T) {
			s, err := Check(test.config, spec(test.tenant))
			require.NoError(t, err)
			golden(t, file+"-pod.yaml", Pod(test.config, "east", PodName(id, 0), ClaimName(id, 0), s))
			golden(t, file+"-claim.yaml", Claim(test.config, "east", ClaimName(id, 0), s))
		})
	}
	golden(t, "policy.yaml", Policy(c))
}

// TestRestricted: whatever a profile says, a pod passes the strictest Pod Security standard and holds no secret.
func TestRestricted(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		c := config()
		c.Toolbox.Source = rapid.SampledFrom([]string{SourceInit, SourceImage}).Draw(t, "source")
		c = c.WithDefaults()
		s := spec(rapid.SampledFrom([]string{"acme", "someone"}).Draw(t, "tenant"))
		s.CPUMillis = rapid.Uint32Range(0, 64_000).Draw(t, "cpu")
		s.MemoryBytes = rapid.Uint64Range(0, 64<<30).Draw(t, "memory")
		s.MaxRuntime = time.Duration(rapid.Int64Range(0, int64(30*24*time.Hour)).Draw(t, "runtime"))
		s, err := Check(c, s)
		require.NoError(t, err)
		pod := Pod(c, "east", PodName(id, 0), ClaimName(id, 0), s)
		level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
		for _, r := range evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec) {
			require.True(t, r.Allowed, "%s: %s", r.ForbiddenReason, r.ForbiddenDetail)
		}
		text, err := yaml.Marshal(pod)
		require.NoError(t, err)
		require.NotContains(t, string(text), s.Env["TOKEN"])
		require.False(t, *pod.Spec.AutomountServiceAccountToken)
		require.Greater(t, *pod.Spec.ActiveDeadlineSeconds, int64(s.MaxRuntime/time.Second), "the log comes first")
		for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
				limit, request := container.Resources.Limits[r], container.Resources.Requests[r]
				require.Positive(t, request.Sign(), r)
				require.LessOrEqual(t, request.Cmp(limit), 0, r)
			}
		}
	})
}

// TestNames: names are of the kinds that Kubernetes takes, differ with the attempt, and the first has the id's own digits.
func TestNames(t *testing.T) {
	require.Equal(t, "sandbox-0f6f5c1e", PodName(id, 0))
	require.Equal(t, "workspace-0f6f5c1e", ClaimName(id, 0))
	seen := map[string]bool{}
	for n := range MaxNames {
		pod, claim := PodName(id, n), ClaimName(id, n)
		require.Empty(t, validation.IsDNS1123Label(pod))
		require.Equal(t, strings.TrimPrefix(pod, "sandbox-"), strings.TrimPrefix(claim, "workspace-"))
		require.False(t, seen[pod], pod)
		seen[pod] = true
		require.Equal(t, pod, PodName(id, n), "a retry finds it again")
	}
	other := "0f6f5c1e" + ids.New()[8:]
	require.Equal(t, PodName(id, 0), PodName(other, 0))
	require.NotEqual(t, PodName(id, 1), PodName(other, 1), "who collides once does not again")
}

// TestLabelValues: every tenant that there can be has a label, and two never share one.
func TestLabelValues(t *testing.T) {
	token := rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := token.Draw(t, "a"), token.Draw(t, "b")
		require.Empty(t, validation.IsValidLabelValue(LabelValue(a)), a)
		require.Equal(t, a == b, LabelValue(a) == LabelValue(b))
	})
}

func TestSpecsThatNoPodCanBeMadeOf(t *testing.T) {
	c := config().WithDefaults()
	for name, test := range map[string]struct {
		change func(*runtime.Spec)
		reason fault.Reason
	}{
		"an id that is none":       {func(s *runtime.Spec) { s.ID = "../x" }, fault.ReasonValidation},
		"no tenant":                {func(s *runtime.Spec) { s.Tenant = "" }, fault.ReasonValidation},
		"the root as workspace":    {func(s *runtime.Spec) { s.MountPath = "/" }, fault.ReasonValidation},
		"a relative workspace":     {func(s *runtime.Spec) { s.MountPath = "work" }, fault.ReasonValidation},
		"a workspace over ours":    {func(s *runtime.Spec) { s.MountPath = Dir + "/bin" }, fault.ReasonValidation},
		"a workspace over /proc":   {func(s *runtime.Spec) { s.MountPath = "/proc/x" }, fault.ReasonValidation},
		"a workspace with options": {func(s *runtime.Spec) { s.MountPath = "/a:ro" }, fault.ReasonValidation},
		"a workspace that climbs":  {func(s *runtime.Spec) { s.MountPath = "/a/../proc" }, fault.ReasonValidation},
		"a host that is none":      {func(s *runtime.Spec) { s.Hostname = "a b" }, fault.ReasonValidation},
		"no image":                 {func(s *runtime.Spec) { s.Image = "" }, fault.ReasonImageInvalid},
		"an image that is none":    {func(s *runtime.Spec) { s.Image = "not a reference" }, fault.ReasonImageInvalid},
		"an image from elsewhere":  {func(s *runtime.Spec) { s.Image = "169.254.169.254/x:1" }, fault.ReasonImageInvalid},
		"an image from beside":     {func(s *runtime.Spec) { s.Image = "docker.io/libraryx/y" }, fault.ReasonImageInvalid},
		"a size out of range":      {func(s *runtime.Spec) { s.WorkspaceBytes = 1 << 63 }, fault.ReasonValidation},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec("acme")
			test.change(&s)
			_, err := Check(c, s)
			require.True(t, fault.Is(err, test.reason), "%v", err)
			require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
		})
	}
}

func TestImagesAreNamedInFull(t *testing.T) {
	c := config().WithDefaults()
	digest := "sha256:" + strings.Repeat("ab", 32)
	for given, want := range map[string]string{
		"python": "docker.io/library/python:latest", " " + "python:3" + " ": "docker.io/library/python:3", "a/b@" + digest: "docker.io/a/b@" + digest,
		"localhost:5000/a:1": "localhost:5000/a:1",
	} {
		s := spec("someone")
		s.Image = given
		s, err := Check(c, s)
		require.NoError(t, err)
		require.Equal(t, want, s.Image)
	}
}

func pemCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestEveryMistakeIsReportedAtOnce(t *testing.T) {
	good := config()
	good.ClientCA = pemCA(t)
	require.NoError(t, good.Validate())
	require.NoError(t, Config{Namespace: "s", ClientCA: good.ClientCA, Toolbox: Toolbox{Image: "t:1"}}.Validate())
	bad := Config{
		Namespace: "A_b", ServicesNamespace: "C_d", ClientCA: "no certificate", Toolbox: Toolbox{Path: "x", Source: "magic"}, Port: 80,
		Profiles: map[string]Profile{"p": {
			RuntimeClass: "A", StorageClass: "B_", AccessMode: corev1.ReadWriteMany, UID: -1, PullPolicy: "Sometimes", PullSecrets: []string{"C_"},
			NodeSelector: map[string]string{"a b": "c"}, Annotations: map[string]string{AnnotationTenant: "x"}, PriorityClass: "D_",
			CPURequest: 101, MemoryRequest: -1, StorageRequest: 1000, StorageBytes: 1, MaxRuntimeSeconds: -1, SlackSeconds: -1, GraceSeconds: 31,
		}},
		Tenants: map[string]string{"acme": "none"},
	}
	err := bad.Validate()
	for _, part := range []string{
		"namespace:", "services' namespace:", "toolbox image:", "toolbox path:", "toolbox source:", "client CA:", "port:", "profile p: runtime class:", "storage class:", "access mode:",
		"uid, gid:", "pull policy:", "pull secrets:", "node selector:", "annotations:", "priority class:", "cpu request:", "memory request:", "storage request:",
		"storage:", "max runtime:", "slack:", "grace:", `tenant acme: there is no profile "none"`,
	} {
		require.ErrorContains(t, err, part)
	}
}
