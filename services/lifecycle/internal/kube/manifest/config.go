// Package manifest says what a sandbox is in Kubernetes: its pod, its claim and the network policy around all of them, as pure
// functions of a sandbox's spec and a configuration.
package manifest

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Config is what all sandboxes of a cluster have in common. The zero value of a field means the default that its comment names.
type Config struct {
	// Namespace of the sandboxes. Nothing else should live there. No default.
	Namespace string `json:"namespace"`
	// Toolbox brings the agent into each pod.
	Toolbox Toolbox `json:"toolbox"`
	// ClientCA is the certificate, PEM, under which callers of the agent prove themselves. No default.
	ClientCA string `json:"clientCA"`
	// Port that the agent listens on: 7070.
	Port int32 `json:"port,omitempty"`
	// Clients may reach the agent: pods of app.kubernetes.io/part-of=sandtrail that are exec or lifecycle, in ServicesNamespace.
	Clients []networkingv1.NetworkPolicyPeer `json:"clients,omitempty"`
	// ServicesNamespace is where the services run: any.
	ServicesNamespace string `json:"servicesNamespace,omitempty"`
	// Profiles by name; the one named default is for every tenant that Tenants does not name.
	Profiles map[string]Profile `json:"profiles,omitempty"`
	// Tenants gives the profile of a tenant.
	Tenants map[string]string `json:"tenants,omitempty"`
}

// Toolbox is an image that holds the toolbox binary.
type Toolbox struct {
	// Image reference, by digest if it shall never change. No default.
	Image string `json:"image"`
	// Path of the binary in the image: /usr/bin/sandtrail-agent.
	Path string `json:"path,omitempty"`
	// Source is how it comes into the pod: "init" copies it with an init container; "image" mounts the image as a volume, which is
	// faster and needs a cluster and a runtime that have image volumes. Default: init.
	Source string `json:"source,omitempty"`
}

// Sources of the toolbox.
const (
	SourceInit  = "init"
	SourceImage = "image"
)

// Profile is what the sandboxes of some tenants have in common.
type Profile struct {
	// RuntimeClass: gvisor.
	RuntimeClass string `json:"runtimeClass,omitempty"`
	// StorageClass of workspaces: the cluster's default.
	StorageClass string `json:"storageClass,omitempty"`
	// AccessMode of workspaces: ReadWriteOnce. ReadWriteOncePod, where the volumes' driver has it, lets the cluster itself refuse a
	// second pod.
	AccessMode corev1.PersistentVolumeAccessMode `json:"accessMode,omitempty"`
	// UID and GID of everything in the sandbox, not 0: 1000. GID is also the group of the workspace.
	UID int64 `json:"uid,omitempty"`
	GID int64 `json:"gid,omitempty"`

	NodeSelector  map[string]string   `json:"nodeSelector,omitempty"`
	Tolerations   []corev1.Toleration `json:"tolerations,omitempty"`
	PriorityClass string              `json:"priorityClass,omitempty"`
	// TopologySpread: over nodes as far as that goes.
	TopologySpread []corev1.TopologySpreadConstraint `json:"topologySpread,omitempty"`
	// PullSecrets are names of secrets in the namespace. Whoever may use the profile may run every image that they open.
	PullSecrets []string `json:"pullSecrets,omitempty"`
	// PullPolicy: IfNotPresent, with which an image that was pulled for one tenant can be run by another.
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`
	// Registries that images may come from, each a host or a host with the beginning of a repository: all. A node pulls from its own
	// place in the network, which tenants should not be able to look around in.
	Registries []string `json:"registries,omitempty"`

	// What of a limit is reserved on the node, in percent: 100. Less lets sandboxes share what the others leave.
	CPURequest     int64 `json:"cpuRequest,omitempty"`
	MemoryRequest  int64 `json:"memoryRequest,omitempty"`
	StorageRequest int64 `json:"storageRequest,omitempty"`
	// StorageBytes a sandbox may write outside of its workspace, what the agent keeps included: 2 GiB.
	StorageBytes int64 `json:"storageBytes,omitempty"`
	// MaxRuntimeSeconds is for sandboxes without an own maximum: 30 days. SlackSeconds is how much later than the log the cluster ends
	// a sandbox: 10 min.
	MaxRuntimeSeconds int64 `json:"maxRuntimeSeconds,omitempty"`
	SlackSeconds      int64 `json:"slackSeconds,omitempty"`
	// GraceSeconds between TERM and KILL at the end of a pod, 1 to 30: 2.
	GraceSeconds int64 `json:"graceSeconds,omitempty"`

	// Annotations of the pods, for other programs of the cluster.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// DefaultProfile is the name of the profile of tenants that have none of their own.
const DefaultProfile = "default"

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// WithDefaults fills in what is not set.
func (c Config) WithDefaults() Config {
	set(&c.Port, 7070)
	set(&c.Toolbox.Path, "/usr/bin/sandtrail-agent")
	set(&c.Toolbox.Source, SourceInit)
	// An empty list would let everybody in.
	if len(c.Clients) == 0 {
		c.Clients = defaultClients(c.ServicesNamespace)
	}
	profiles := map[string]Profile{DefaultProfile: {}}
	maps.Copy(profiles, c.Profiles)
	for n, p := range profiles {
		profiles[n] = p.withDefaults()
	}
	c.Profiles = profiles
	return c
}

func (p Profile) withDefaults() Profile {
	set(&p.RuntimeClass, "gvisor")
	set(&p.AccessMode, corev1.ReadWriteOnce)
	set(&p.UID, 1000)
	set(&p.GID, 1000)
	set(&p.PullPolicy, corev1.PullIfNotPresent)
	set(&p.CPURequest, 100)
	set(&p.MemoryRequest, 100)
	set(&p.StorageRequest, 100)
	set(&p.StorageBytes, 2<<30)
	set(&p.MaxRuntimeSeconds, int64((30*24*time.Hour)/time.Second))
	set(&p.SlackSeconds, 600)
	set(&p.GraceSeconds, 2)
	if p.TopologySpread == nil {
		p.TopologySpread = defaultSpread()
	}
	return p
}

// Profile of a tenant. The configuration has its defaults filled in and is valid.
func (c Config) Profile(tenant string) Profile {
	if name, ok := c.Tenants[tenant]; ok {
		return c.Profiles[name]
	}
	return c.Profiles[DefaultProfile]
}

// Validate reports every mistake at once. It is about the configuration with its defaults filled in.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(len(validation.IsDNS1123Label(c.Namespace)) == 0, "namespace: %q is not the name of one", c.Namespace)
	check(c.ServicesNamespace == "" || len(validation.IsDNS1123Label(c.ServicesNamespace)) == 0, "services' namespace: %q is not the name of one", c.ServicesNamespace)
	check(reference(c.Toolbox.Image), "toolbox image: %q is not a reference", c.Toolbox.Image)
	check(path.IsAbs(c.Toolbox.Path) && path.Clean(c.Toolbox.Path) == c.Toolbox.Path, "toolbox path: %q is not an absolute path", c.Toolbox.Path)
	check(c.Toolbox.Source == SourceInit || c.Toolbox.Source == SourceImage, "toolbox source: %q is neither %s nor %s", c.Toolbox.Source, SourceInit, SourceImage)
	check(certificate(c.ClientCA), "client CA: not one or more certificates in PEM")
	check(c.Port > 1023 && c.Port <= 65535, "port: %d is not between 1024 and 65535", c.Port)
	for _, n := range slices.Sorted(maps.Keys(c.Profiles)) {
		for _, err := range c.Profiles[n].mistakes() {
			errs = append(errs, fmt.Errorf("profile %s: %w", n, err))
		}
	}
	for _, t := range slices.Sorted(maps.Keys(c.Tenants)) {
		_, ok := c.Profiles[c.Tenants[t]]
		check(ok, "tenant %s: there is no profile %q", t, c.Tenants[t])
	}
	return errors.Join(errs...)
}

func (p Profile) mistakes() (errs []error) {
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	subdomain := func(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }
	check(subdomain(p.RuntimeClass), "runtime class: %q is not the name of one", p.RuntimeClass)
	check(p.StorageClass == "" || subdomain(p.StorageClass), "storage class: %q is not the name of one", p.StorageClass)
	check(p.PriorityClass == "" || subdomain(p.PriorityClass), "priority class: %q is not the name of one", p.PriorityClass)
	check(p.AccessMode == corev1.ReadWriteOnce || p.AccessMode == corev1.ReadWriteOncePod,
		"access mode: %q is neither ReadWriteOnce nor ReadWriteOncePod", p.AccessMode)
	check(p.UID > 0 && p.UID < 1<<31 && p.GID > 0 && p.GID < 1<<31, "uid, gid: %d, %d are not positive", p.UID, p.GID)
	check(slices.Contains([]corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}, p.PullPolicy),
		"pull policy: %q is not Always, IfNotPresent or Never", p.PullPolicy)
	for _, s := range p.PullSecrets {
		check(subdomain(s), "pull secrets: %q is not the name of one", s)
	}
	for k, v := range p.NodeSelector {
		check(len(validation.IsQualifiedName(k)) == 0 && len(validation.IsValidLabelValue(v)) == 0, "node selector: %s=%s is not a label", k, v)
	}
	for k := range p.Annotations {
		check(len(validation.IsQualifiedName(strings.ToLower(k))) == 0, "annotations: %q is not a key", k)
		check(!ours(k), "annotations: %q is set by us", k)
	}
	for what, percent := range map[string]int64{"cpu request": p.CPURequest, "memory request": p.MemoryRequest, "storage request": p.StorageRequest} {
		check(percent >= 1 && percent <= 100, "%s: %d is not between 1 and 100", what, percent)
	}
	check(p.StorageBytes >= 64<<20, "storage: %d bytes are less than 64 MiB", p.StorageBytes)
	check(p.MaxRuntimeSeconds > 0 && p.MaxRuntimeSeconds < 1<<30, "max runtime: %d seconds are not between 1 and 34 years", p.MaxRuntimeSeconds)
	check(p.SlackSeconds > 0 && p.SlackSeconds < 1<<30, "slack: %d seconds are not between 1 and 34 years", p.SlackSeconds)
	check(p.GraceSeconds >= 1 && p.GraceSeconds <= 30, "grace: %d seconds are not between 1 and 30", p.GraceSeconds)
	return errs
}

func ours(annotation string) bool {
	return slices.Contains([]string{AnnotationTenant, AnnotationSpec, AnnotationDeleteAfter}, annotation)
}

func reference(s string) bool {
	_, err := name.ParseReference(s)
	return err == nil && s == strings.TrimSpace(s)
}

func certificate(s string) bool {
	rest, found := []byte(s), false
	for {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			return found && strings.TrimSpace(string(rest)) == ""
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil || block.Type != "CERTIFICATE" {
			return false
		}
		found = true
	}
}
