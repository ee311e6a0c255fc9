package kube

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The caches hold every pod of the worker, so they hold of each only what is read: about a tenth.

func trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels, Annotations: m.Annotations,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		DeletionGracePeriodSeconds: m.DeletionGracePeriodSeconds, Finalizers: m.Finalizers,
	}
}

func trimPod(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	spec := corev1.PodSpec{
		NodeName: p.Spec.NodeName, RuntimeClassName: p.Spec.RuntimeClassName, PriorityClassName: p.Spec.PriorityClassName,
		ActiveDeadlineSeconds: p.Spec.ActiveDeadlineSeconds, NodeSelector: p.Spec.NodeSelector,
		InitContainers: trimContainers(p.Spec.InitContainers), Containers: trimContainers(p.Spec.Containers),
	}
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			spec.Volumes = append(spec.Volumes, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: v.PersistentVolumeClaim}})
		}
	}
	return &corev1.Pod{ObjectMeta: trimMeta(p.ObjectMeta), Spec: spec, Status: p.Status}, nil
}

func trimContainers(all []corev1.Container) (trimmed []corev1.Container) {
	for _, c := range all {
		trimmed = append(trimmed, corev1.Container{
			Name: c.Name, Image: c.Image, ImagePullPolicy: c.ImagePullPolicy,
			Resources: corev1.ResourceRequirements{Limits: c.Resources.Limits, Requests: c.Resources.Requests},
		})
	}
	return trimmed
}

func trimClaim(obj any) (any, error) {
	c, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return obj, nil
	}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: trimMeta(c.ObjectMeta), Status: corev1.PersistentVolumeClaimStatus{Phase: c.Status.Phase, Conditions: c.Status.Conditions},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: c.Spec.StorageClassName, VolumeName: c.Spec.VolumeName, AccessModes: c.Spec.AccessModes, Resources: c.Spec.Resources,
		},
	}, nil
}

func trimEvent(obj any) (any, error) {
	e, ok := obj.(*corev1.Event)
	if !ok {
		return obj, nil
	}
	trimmed := *e
	trimmed.ObjectMeta = trimMeta(e.ObjectMeta)
	return &trimmed, nil
}
