package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

// Output is what a command in a pod gave.
type Output struct {
	Stdout, Stderr string
	Code           int
}

// Exec runs a command in the first container of a pod through the API, as `kubectl exec` does. A command that ends by itself is no error,
// whatever its code.
func (c *Cluster) Exec(ctx context.Context, namespace, pod string, stdin io.Reader, argv ...string) (Output, error) {
	config, err := c.AdminConfig()
	if err != nil {
		return Output{}, err
	}
	url := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: argv, Stdin: stdin != nil, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	stream, err := remotecommand.NewWebSocketExecutor(config, "GET", url.String())
	if err != nil {
		return Output{}, err
	}
	var stdout, stderr bytes.Buffer
	err = stream.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &stdout, Stderr: &stderr})
	out := Output{Stdout: stdout.String(), Stderr: stderr.String()}
	var ended exec.CodeExitError
	switch {
	case errors.As(err, &ended):
		out.Code = ended.Code
	case err != nil:
		return out, fmt.Errorf("exec in %s/%s: %w: %s", namespace, pod, err, out.Stderr)
	}
	return out, nil
}
