package system

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/deploy/k8s/images"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/binaries"
)

// cliPath is the command line in its image.
const cliPath = "usr/bin/sandtrail-cli"

// images gives the node those of the services and of the sandboxes.
func (i *Installation) images(ctx context.Context) error {
	for _, p := range images.Programs() {
		image, err := i.image(ctx, p)
		if err != nil {
			return err
		}
		if p.Name == "cli" {
			i.cli = image
		}
		if err := i.cluster.LoadImage(ctx, registry+"/sandtrail-"+p.Name+":"+tag, image); err != nil {
			return err
		}
	}
	return i.cluster.LoadSandboxImage(ctx, binaries.Builder{Source: i.options.Source})
}

// image takes the one that is there, or builds it.
func (i *Installation) image(ctx context.Context, p images.Program) (v1.Image, error) {
	if i.options.Images != "" {
		return tarball.ImageFromPath(filepath.Join(i.options.Images, "sandtrail-"+p.Name+".tar"), nil)
	}
	image, _, err := images.Build(ctx, p, images.Options{Root: i.options.Source, Version: tag})
	return image, err
}

// secrets are what `sandtrail secrets` of the image prints, and the address of ClickHouse.
func (i *Installation) secrets(ctx context.Context) error {
	list, key, err := runSecrets(ctx, i.cli, i.options.Tenant)
	if err != nil {
		return err
	}
	i.Key = key
	if url := i.options.ClickHouse; url != "" {
		list = append(list, corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: release + "-clickhouse", Namespace: Namespace}, StringData: map[string]string{"url": url}})
	}
	for n := range list {
		if _, err := i.cluster.Client.CoreV1().Secrets(Namespace).Create(ctx, &list[n], metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

var shownKey = regexp.MustCompile(`(?m): (\S+)$`)

func runSecrets(ctx context.Context, image v1.Image, tenant string) ([]corev1.Secret, string, error) {
	dir, err := os.MkdirTemp("", "st-cli-")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "sandtrail")
	if err := extract(image, cliPath, program); err != nil {
		return nil, "", err
	}
	cmd := exec.CommandContext(ctx, program, "secrets", "--namespace", Namespace, "--name", release, "--tenant", tenant)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, "", fmt.Errorf("sandtrail secrets: %w: %s", err, stderr.String())
	}
	shown := shownKey.FindStringSubmatch(strings.TrimSpace(stderr.String()))
	if shown == nil {
		return nil, "", errors.New("sandtrail secrets shows no key")
	}
	var list corev1.SecretList
	if err := json.Unmarshal(stdout.Bytes(), &list); err != nil {
		return nil, "", fmt.Errorf("what sandtrail secrets prints: %w", err)
	}
	return list.Items, shown[1], nil
}

// extract copies one file of an image.
func extract(image v1.Image, path, to string) error {
	all := mutate.Extract(image)
	defer all.Close()
	for t := tar.NewReader(all); ; {
		h, err := t.Next()
		if err != nil {
			return fmt.Errorf("find %s in the image: %w", path, err)
		}
		if h.Name != path {
			continue
		}
		f, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o700)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, t)
		return errors.Join(err, f.Close())
	}
}
