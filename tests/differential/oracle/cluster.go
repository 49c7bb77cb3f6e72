package main

import (
	"context"
	"fmt"

	"github.com/samber/lo"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	apifake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	cloudfake "sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"
)

// world is Karpenter's surroundings: an API server and a cloud that hold what the scenario says, and what Karpenter's
// own state of the cluster is after it has seen all of it.
type world struct {
	kube        client.Client
	cloud       cloudprovider.CloudProvider
	cluster     *state.Cluster
	recorder    *witness
	clock       clock.Clock
	provisioner *provisioning.Provisioner
	objects     []client.Object
}

// newWorld sets it up. The scenario's NodeOverlays are applied by Karpenter's own controller.
func newWorld(ctx context.Context, asked scenario, clk clock.Clock) (*world, error) {
	objects, err := asked.typed()
	if err != nil {
		return nil, err
	}
	kube, err := newAPI(objects)
	if err != nil {
		return nil, err
	}
	plain := cloudfake.NewCloudProvider()
	plain.Reset()
	plain.InstanceTypes = lo.Map(asked.InstanceTypes, func(t instanceType, _ int) *cloudprovider.InstanceType {
		return t.toKarpenter()
	})
	w := &world{kube: kube, clock: clk, objects: objects, recorder: &witness{messages: map[string]string{}}}
	w.cluster = state.NewCluster(clk, kube, plain)
	if w.cloud, err = w.withOverlays(ctx, plain); err != nil {
		return nil, err
	}
	w.provisioner = provisioning.NewProvisioner(
		kube, w.recorder, w.cloud, w.cluster, clk, nil, virtualpods.NewVirtualPodCache(kube))
	return w, w.observe(ctx)
}

// newAPI is an API server in memory that has the field indices Karpenter asks by.
func newAPI(objects []client.Object) (made client.Client, err error) {
	defer func() { // the builder panics at objects that no API server would hold
		if trouble := recover(); trouble != nil {
			err = fmt.Errorf("the objects contradict each other: %v", trouble)
		}
	}()
	nodeClass := func(field func(*v1.NodeClassReference) string) client.IndexerFunc {
		return func(o client.Object) []string {
			return []string{field(o.(*v1.NodePool).Spec.Template.Spec.NodeClassRef)}
		}
	}
	const ref = "spec.template.spec.nodeClassRef."
	return apifake.NewClientBuilder().
		WithScheme(scheme.Scheme).
		WithObjects(objects...).
		WithStatusSubresource(&v1.NodeClaim{}, &v1.NodePool{}, &v1alpha1.NodeOverlay{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
			return []string{o.(*corev1.Pod).Spec.NodeName}
		}).
		WithIndex(&corev1.Node{}, "spec.providerID", func(o client.Object) []string {
			return []string{o.(*corev1.Node).Spec.ProviderID}
		}).
		WithIndex(&v1.NodeClaim{}, "status.providerID", func(o client.Object) []string {
			return []string{o.(*v1.NodeClaim).Status.ProviderID}
		}).
		WithIndex(&v1.NodePool{}, ref+"group", nodeClass(func(r *v1.NodeClassReference) string { return r.Group })).
		WithIndex(&v1.NodePool{}, ref+"kind", nodeClass(func(r *v1.NodeClassReference) string { return r.Kind })).
		WithIndex(&v1.NodePool{}, ref+"name", nodeClass(func(r *v1.NodeClassReference) string { return r.Name })).
		WithIndex(&storagev1.VolumeAttachment{}, "spec.nodeName", func(o client.Object) []string {
			return []string{o.(*storagev1.VolumeAttachment).Spec.NodeName}
		}).
		WithInterceptorFuncs(interceptor.Funcs{Get: getLikeAServer, List: listFrom(podsByNode(objects))}).
		Build(), nil
}

// podsByNode are the pods of each node. Nothing here creates, changes or deletes a pod.
func podsByNode(objects []client.Object) map[string][]corev1.Pod {
	found := map[string][]corev1.Pod{}
	for _, object := range objects {
		if pod, ok := object.(*corev1.Pod); ok {
			found[pod.Spec.NodeName] = append(found[pod.Spec.NodeName], *pod)
		}
	}
	return found
}

// listFrom answers Karpenter's most frequent question, which pods a node has, from these; the server in memory would read
// all pods for each node.
func listFrom(pods map[string][]corev1.Pod) func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
	return func(ctx context.Context, kube client.WithWatch, into client.ObjectList, options ...client.ListOption) error {
		list, ok := into.(*corev1.PodList)
		asked := (&client.ListOptions{}).ApplyOptions(options)
		if !ok || asked.FieldSelector == nil || asked.LabelSelector != nil || asked.Namespace != "" {
			return kube.List(ctx, into, options...)
		}
		node, isByNode := asked.FieldSelector.RequiresExactMatch("spec.nodeName")
		if !isByNode || len(asked.FieldSelector.Requirements()) > 1 {
			return kube.List(ctx, into, options...)
		}
		list.Items = nil
		for i := range pods[node] {
			list.Items = append(list.Items, *pods[node][i].DeepCopy())
		}
		return nil
	}
}

// getLikeAServer leaves out the namespace that Karpenter gives when it asks for volumes: a server has no use for it, but
// the one in memory would find nothing, and Karpenter schedules such a pod as if it had no volumes.
func getLikeAServer(
	ctx context.Context, kube client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption,
) error {
	if _, ok := into.(*corev1.PersistentVolume); ok {
		key.Namespace = ""
	}
	return kube.Get(ctx, key, into, options...)
}

// withOverlays is the cloud as Karpenter sees it through the scenario's NodeOverlays.
func (w *world) withOverlays(ctx context.Context, plain cloudprovider.CloudProvider) (cloudprovider.CloudProvider, error) {
	if !has[*v1alpha1.NodeOverlay](w.objects) {
		return plain, nil
	}
	store := nodeoverlay.NewInstanceTypeStore()
	controller := nodeoverlay.NewController(w.clock, w.kube, plain, store, w.cluster)
	if _, err := controller.Reconcile(ctx, reconcile.Request{}); err != nil {
		return nil, fmt.Errorf("evaluating NodeOverlays: %w", err)
	}
	return overlay.Decorate(plain, w.kube, store), nil
}

// observe tells the state of the cluster about every object, in an order in which each finds those it refers to.
func (w *world) observe(ctx context.Context) error {
	for _, object := range w.objects {
		if claim, ok := object.(*v1.NodeClaim); ok {
			w.cluster.UpdateNodeClaim(claim)
		}
	}
	for _, object := range w.objects {
		if node, ok := object.(*corev1.Node); ok {
			if err := w.cluster.UpdateNode(ctx, node); err != nil {
				return fmt.Errorf("node %s: %w", node.Name, err)
			}
		}
	}
	for _, object := range w.objects {
		switch o := object.(type) {
		case *corev1.Pod:
			// a pod may be bound to a node that is gone, or use a claim that is
			if err := w.cluster.UpdatePod(ctx, o); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("pod %s: %w", key(o), err)
			}
		case *appsv1.DaemonSet:
			if err := w.cluster.UpdateDaemonSet(ctx, o); err != nil {
				return fmt.Errorf("daemon set %s: %w", o.Name, err)
			}
		}
	}
	return nil
}

func has[T client.Object](objects []client.Object) bool {
	return lo.ContainsBy(objects, func(o client.Object) bool { _, ok := o.(T); return ok })
}
