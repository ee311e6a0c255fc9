// Command kube is one binary that holds etcd and every Kubernetes component of a single node: `kube etcd`, `kube apiserver` and so on. One
// binary links the shared nine tenths once, which a build from source on two cores feels.
package main

import (
	"context"
	"fmt"
	"os"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func components() map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{
		"apiserver":          apiserver.NewAPIServerCommand,
		"controller-manager": manager.NewControllerManagerCommand,
		"scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"proxy":              proxy.NewProxyCommand,
		"kubelet":            func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	}
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kube etcd|apiserver|controller-manager|scheduler|proxy|kubelet [flags]")
		os.Exit(2)
	}
	name := os.Args[1]
	// Each component reads os.Args as if it were alone.
	os.Args = os.Args[1:]
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command, ok := components()[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "kube: %q is no component\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
