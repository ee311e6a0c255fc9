package render

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/sandtrail/sandtrail/libs/permission"
)

// Placeholders stand in what is generated for values that the chart puts there.
const (
	workerPlaceholder  = "NAME-OF-THE-WORKER"
	accountPlaceholder = "ACCOUNT-OF-THE-SERVICES"
)

// subscriberPlaceholder is a subscriber all of whom the chart puts there.
var subscriberPlaceholder = permission.Subscriber{Name: "NAME-OF-THE-SUBSCRIBER", Tenant: "TENANT-OF-THE-SUBSCRIBER", Nkey: "$NKEY_OF_THE_SUBSCRIBER"}

// Generated are the files below deploy/k8s that are made from code, by path. `make deploy` writes them; a test compares.
func Generated(dir string) (map[string][]byte, error) {
	authorization, err := Authorization()
	if err != nil {
		return nil, err
	}
	exports, account, err := Subscriber()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		"chart/files/authorization.conf": []byte(authorization), "chart/files/subscriber-exports.conf": []byte(exports), "chart/files/subscriber-account.conf": []byte(account),
	}
	rendered, err := Chart(filepath.Join(dir, "chart"), Release{Name: "sandtrail", Namespace: "sandtrail"}, nil)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, o := range rendered.Objects {
		// Who applies it with kustomize is not Helm.
		labels := o.GetLabels()
		labels["app.kubernetes.io/managed-by"] = "kustomize"
		o.SetLabels(labels)
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", key(o), err)
		}
		name := strings.ToLower(o.GetKind() + "-" + o.GetName() + ".yaml")
		if _, twice := files["base/"+name]; twice {
			name = strings.ToLower(o.GetKind() + "-" + o.GetNamespace() + "-" + o.GetName() + ".yaml")
		}
		files["base/"+name] = text
		names = append(names, name)
	}
	kustomization, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": names,
	})
	if err != nil {
		return nil, fmt.Errorf("write the kustomization: %w", err)
	}
	files["base/kustomization.yaml"] = append([]byte("# Made from the chart with its own values by `make deploy`.\n"), kustomization...)
	return files, nil
}

// Write writes the generated files and removes what is no longer one of the base. What is rendered needs what was written before, so it
// goes twice over them.
func Write(dir string) error {
	for range 2 {
		files, err := Generated(dir)
		if err != nil {
			return err
		}
		if err := os.RemoveAll(filepath.Join(dir, "base")); err != nil {
			return fmt.Errorf("remove the old base: %w", err)
		}
		for name, text := range files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return fmt.Errorf("write %s: %w", name, err)
			}
			if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // sources are for everybody
				return fmt.Errorf("write %s: %w", name, err)
			}
		}
	}
	return nil
}

// Authorization is the block of the NATS server's configuration; keys are variables of its environment.
func Authorization() (string, error) {
	var users []permission.User
	for _, r := range permission.Roles() {
		rules, err := permission.Of(r, workerPlaceholder)
		if err != nil {
			return "", err
		}
		users = append(users, permission.User{Nkey: "$SANDTRAIL_NKEY_" + strings.ToUpper(string(r)), Rules: rules})
	}
	return permission.Authorization(users...)
}

// Subscriber is what the NATS server's configuration has for each subscriber: exports of the services' account, and an account.
func Subscriber() (exports, account string, err error) {
	if exports, err = subscriberPlaceholder.Exports(); err != nil {
		return "", "", err
	}
	account, err = subscriberPlaceholder.Account(accountPlaceholder)
	return exports, account, err
}
