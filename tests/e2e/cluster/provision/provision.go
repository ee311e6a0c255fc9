// Package provision makes a directory of the node for each volume claim of its class, as a `local` volume: unlike a hostPath it takes the pod's
// fsGroup, so that a program without root may write. It removes the directory when the claim is gone.
package provision

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// Class is the storage class whose claims are served, and Name who serves them.
	Class = "local"
	Name  = "test.sandtrail.dev/local"

	provisionedBy = "pv.kubernetes.io/provisioned-by"
	// again is how soon what failed is tried once more.
	again = 5 * time.Second
)

// argv0 is the name under which a program that has this package runs as the provisioner.
const argv0 = "sandtrail-provisioner"

// Argv is how the node's first process starts the provisioner: kubeconfig of an administrator, directory of the volumes, name of the node.
func Argv(kubeconfig, dir, node string) []string { return []string{argv0, kubeconfig, dir, node} }

func init() {
	if len(os.Args) != 4 || os.Args[0] != argv0 {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
	stop()
	os.Exit(0)
}

type provisioner struct {
	client    kubernetes.Interface
	dir, node string
}

func run(ctx context.Context, kubeconfig, dir, node string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	p := provisioner{client: client, dir: dir, node: node}
	factory := informers.NewSharedInformerFactory(client, again)
	for _, watched := range []struct {
		informer cache.SharedIndexInformer
		do       func(ctx context.Context, object any) error
	}{
		{factory.Core().V1().PersistentVolumeClaims().Informer(), p.claim},
		{factory.Core().V1().PersistentVolumes().Informer(), p.volume},
	} {
		do := func(object any) {
			if err := watched.do(ctx, object); err != nil {
				log.Print(err)
			}
		}
		if _, err := watched.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: do, UpdateFunc: func(_, now any) { do(now) }}); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// claim makes the volume of a claim that has none.
func (p provisioner) claim(ctx context.Context, object any) error {
	c, ok := object.(*corev1.PersistentVolumeClaim)
	if !ok || c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != Class || c.Spec.VolumeName != "" || c.DeletionTimestamp != nil {
		return nil
	}
	v := volumeOf(c, p.dir, p.node)
	if err := os.MkdirAll(v.Spec.Local.Path, 0o770); err != nil {
		return err
	}
	_, err := p.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	return nil
}

// volumeOf is the volume of a claim; its name holds the claim's UID, so that a claim of the same name gets another.
func volumeOf(c *corev1.PersistentVolumeClaim, dir, node string) *corev1.PersistentVolume {
	name, mode := "pvc-"+string(c.UID), corev1.PersistentVolumeFilesystem
	here := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: Name}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   c.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              Class,
			VolumeMode:                    &mode,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: filepath.Join(dir, name)}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{here}}},
			}},
		},
	}
}

// volume removes what a claim that is gone has left.
func (p provisioner) volume(ctx context.Context, object any) error {
	v, ok := object.(*corev1.PersistentVolume)
	if !ok || v.Annotations[provisionedBy] != Name || v.Status.Phase != corev1.VolumeReleased || v.DeletionTimestamp != nil {
		return nil
	}
	if v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	if err := os.RemoveAll(v.Spec.Local.Path); err != nil {
		return err
	}
	err := p.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(v.UID))})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
