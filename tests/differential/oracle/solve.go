package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clocktesting "k8s.io/utils/clock/testing"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/test"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
)

// Labels that the AWS provider adds to Karpenter's own well-known ones: a pod may ask for them although no NodePool
// defines them.
var awsLabels = []string{
	"instance-category", "instance-family", "instance-generation", "instance-size", "instance-cpu",
	"instance-cpu-manufacturer", "instance-memory", "instance-hypervisor", "instance-local-nvme",
	"instance-network-bandwidth", "instance-ebs-bandwidth", "instance-gpu-name", "instance-gpu-manufacturer",
	"instance-gpu-count", "instance-gpu-memory", "instance-accelerator-name", "instance-accelerator-count",
	"capacity-reservation-id",
}

func init() {
	const aws = "karpenter.k8s.aws/"
	for _, label := range awsLabels {
		v1.WellKnownLabels.Insert(aws + label)
	}
	v1.RestrictedLabelDomains.Insert("karpenter.k8s.aws")
	cloudprovider.ReservationIDLabel = aws + "capacity-reservation-id"
	cloudprovider.ReservedCapacityLabels.Insert(cloudprovider.ReservationIDLabel)
}

// solve answers a scenario.
func solve(asked scenario) (answer, error) {
	clk := clocktesting.NewFakeClock(asked.Now)
	ctx := asked.Options.into(context.Background(), asked)
	w, err := newWorld(ctx, asked, clk)
	if err != nil {
		return answer{}, err
	}
	found, err := w.schedule(ctx, asked.Options)
	if err != nil || !asked.Options.Disrupt {
		return found, err
	}
	d, err := w.newDisruptor(ctx, clk)
	if err != nil {
		return found, err
	}
	if asked.Options.EveryMethod {
		found.Methods, err = d.each(ctx)
		return found, err
	}
	start := time.Now()
	found.Commands, err = d.first(ctx)
	found.DisruptSeconds = time.Since(start).Seconds()
	return found, err
}

// into puts the settings where Karpenter reads them. Gates for kinds of objects are open if there are such objects.
func (s settings) into(ctx context.Context, asked scenario) context.Context {
	preferences := options.PreferencePolicy(lo.CoalesceOrEmpty(s.PreferencePolicy, string(options.PreferencePolicyRespect)))
	minValues := options.MinValuesPolicy(lo.CoalesceOrEmpty(s.MinValuesPolicy, string(options.MinValuesPolicyStrict)))
	kinds := sets.New[string]()
	for i := range asked.Objects {
		kinds.Insert(asked.Objects[i].GetKind())
	}
	return options.ToContext(injection.WithControllerName(ctx, "provisioner"), test.Options(test.OptionsFields{
		PreferencePolicy: &preferences,
		MinValuesPolicy:  &minValues,
		FeatureGates: test.FeatureGates{
			ReservedCapacity:        s.ReservedCapacity,
			SpotToSpotConsolidation: &s.SpotToSpot,
			StaticCapacity:          lo.ToPtr(true),
			NodeOverlay:             lo.ToPtr(kinds.Has("NodeOverlay")),
			CapacityBuffer:          lo.ToPtr(kinds.Has("CapacityBuffer")),
		},
	}))
}

// schedule is one pass of the provisioner. It takes the steps of Provisioner.Schedule rather than calling it, because
// that gives up after a minute whatever the machine.
func (w *world) schedule(ctx context.Context, asked settings) (answer, error) {
	start := time.Now()
	nodes := w.cluster.DeepCopyNodes()
	pending, err := w.provisioner.GetPendingPods(ctx)
	if err != nil {
		return answer{}, err
	}
	leaving, err := nodes.Deleting().CurrentlyReschedulablePods(ctx, w.kube, w.clock, w.recorder)
	if err != nil {
		return answer{}, err
	}
	pods := slices.Concat(pending, leaving) // the scheduler sorts it in place
	leavingUIDs := sets.New(lo.Map(leaving, func(p *corev1.Pod, _ int) types.UID { return p.UID })...)
	scheduler, err := w.provisioner.NewScheduler(ctx, pods, nodes.Active(), leavingUIDs, schedulerOptions(ctx)...)
	if errors.Is(err, provisioning.ErrNodePoolsNotFound) {
		return w.withIgnored(ctx, refuse(pods, err), pending), nil
	}
	if err != nil {
		return answer{}, err
	}
	limited, cancel := asked.limited(ctx)
	defer cancel()
	solving := time.Now()
	results, err := scheduler.Solve(limited, pods)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return answer{}, err
	}
	results = results.TruncateInstanceTypes(ctx, scheduling.MaxInstanceTypes)
	end := time.Now()
	found := describe(results, pods)
	found.Seconds, found.SolveSeconds = end.Sub(start).Seconds(), end.Sub(solving).Seconds()
	return w.withIgnored(ctx, found, pending), nil
}

func (s settings) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.TimeoutSeconds <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(s.TimeoutSeconds*float64(time.Second)))
}

// schedulerOptions are those of Provisioner.Schedule.
func schedulerOptions(ctx context.Context) []scheduling.Options {
	set := options.FromContext(ctx)
	found := []scheduling.Options{
		scheduling.DisableReservedCapacityFallback,
		scheduling.NumConcurrentReconciles(int(math.Ceil(float64(set.CPURequests) / 1000))),
		scheduling.MinValuesPolicy(set.MinValuesPolicy),
	}
	if set.PreferencePolicy == options.PreferencePolicyIgnore {
		found = append(found, scheduling.IgnorePreferences)
	}
	return found
}

// refuse is the answer that places nothing.
func refuse(pods []*corev1.Pod, err error) answer {
	found := describe(scheduling.Results{}, nil)
	for _, pod := range pods {
		found.Errors[key(pod)] = err.Error()
	}
	return found
}

// withIgnored adds the pods that wait for a node but that Karpenter did not consider.
func (w *world) withIgnored(ctx context.Context, found answer, considered []*corev1.Pod) answer {
	found.Ignored = map[string]string{}
	known := sets.New(keys(considered)...)
	for _, object := range w.objects {
		pod, ok := object.(*corev1.Pod)
		if !ok || known.Has(key(pod)) || !podutils.IsProvisionable(pod) {
			continue
		}
		why := "not considered"
		if err := w.provisioner.Validate(ctx, pod); err != nil {
			why, _, _ = strings.Cut(fmt.Sprintf("ignoring pod, %s", err), "; specify a well known label") // a long list
		}
		found.Ignored[key(pod)] = why
	}
	return found
}
