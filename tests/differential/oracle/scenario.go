package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// scenario is one question: what exists, what could be launched, and how to decide. It is the format of
// `journeyman solve`.
type scenario struct {
	Name          string                      `json:"name"`
	Now           time.Time                   `json:"now"`
	InstanceTypes []instanceType              `json:"instanceTypes"`
	Objects       []unstructured.Unstructured `json:"objects"`
	Options       settings                    `json:"options"`
}

// settings are Karpenter's own, by their names in a scenario. What is left out has Karpenter's default, with one
// exception: a pass may take as long as it needs unless TimeoutSeconds says otherwise (Karpenter gives up after 60).
type settings struct {
	PreferencePolicy string  `json:"preferencePolicy"` // Respect | Ignore
	MinValuesPolicy  string  `json:"minValuesPolicy"`  // Strict | BestEffort
	SpotToSpot       bool    `json:"spotToSpotConsolidation"`
	ReservedCapacity *bool   `json:"reservedCapacity"` // on by default
	Disrupt          bool    `json:"disrupt"`          // also look for nodes to disrupt
	EveryMethod      bool    `json:"everyMethod"`      // ask each method, rather than the methods until one has commands
	TimeoutSeconds   float64 `json:"timeoutSeconds"`
}

type requirements []v1.NodeSelectorRequirementWithMinValues

// instanceType is what can be launched. Overhead is everything that pods cannot have of Capacity.
type instanceType struct {
	Name         string              `json:"name"`
	Requirements requirements        `json:"requirements"`
	Offerings    []offering          `json:"offerings"`
	Capacity     corev1.ResourceList `json:"capacity"`
	Overhead     corev1.ResourceList `json:"overhead"`
}

// offering is available unless it says that it is not. ReservationCapacity is how many of it a reservation still has.
type offering struct {
	Requirements        requirements `json:"requirements"`
	Price               float64      `json:"price"`
	Available           *bool        `json:"available"`
	ReservationCapacity int          `json:"reservationCapacity"`
}

var defaultNow = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

// parse reads a scenario; its name is kept even if the rest cannot be read.
func parse(raw []byte) (scenario, error) {
	read := scenario{Now: defaultNow}
	if err := json.Unmarshal(raw, &read); err != nil {
		return scenario{Name: read.Name}, fmt.Errorf("this is no scenario: %w", err)
	}
	return read, nil
}

func (r requirements) toKarpenter() scheduling.Requirements {
	return scheduling.NewNodeSelectorRequirementsWithMinValues(r...)
}

func (t instanceType) toKarpenter() *cloudprovider.InstanceType {
	return &cloudprovider.InstanceType{
		Name:         t.Name,
		Requirements: t.Requirements.toKarpenter(),
		Capacity:     t.Capacity,
		Overhead:     &cloudprovider.InstanceTypeOverhead{KubeReserved: t.Overhead},
		Offerings:    lo.Map(t.Offerings, func(o offering, _ int) *cloudprovider.Offering { return o.toKarpenter() }),
	}
}

func (o offering) toKarpenter() *cloudprovider.Offering {
	return &cloudprovider.Offering{
		Requirements:        o.Requirements.toKarpenter(),
		Price:               o.Price,
		Available:           lo.FromPtrOr(o.Available, true),
		ReservationCapacity: o.ReservationCapacity,
	}
}

// typed gives the scenario's objects as Go types, completed by what an API server and Karpenter's status controllers
// would have added: UIDs, creation times, pods that wait, NodePools that are ready.
func (s scenario) typed() ([]client.Object, error) {
	var found []client.Object
	for i := range s.Objects {
		object, err := toTyped(&s.Objects[i])
		if err != nil {
			return nil, err
		}
		s.complete(object, s.Objects[i].GetKind())
		found = append(found, object)
	}
	return found, nil
}

func toTyped(raw *unstructured.Unstructured) (client.Object, error) {
	name := fmt.Sprintf("%s %s/%s", raw.GetKind(), raw.GetNamespace(), raw.GetName())
	made, err := scheme.Scheme.New(raw.GroupVersionKind())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, made); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	object, ok := made.(client.Object)
	if !ok {
		return nil, fmt.Errorf("%s is no object", name)
	}
	return object, nil
}

func (s scenario) complete(object client.Object, kind string) {
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("%s-%s-%s", kind, object.GetNamespace(), object.GetName())))
	}
	if object.GetCreationTimestamp().Time.IsZero() {
		object.SetCreationTimestamp(metav1.NewTime(s.Now.Add(-time.Hour)))
	}
	switch o := object.(type) {
	case *corev1.Pod:
		if o.Spec.NodeName == "" && len(o.Status.Conditions) == 0 {
			o.Status.Phase = corev1.PodPending
			o.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			}}
		}
	case *v1.NodePool:
		o.StatusConditions().SetTrue(v1.ConditionTypeValidationSucceeded)
		o.StatusConditions().SetTrue(v1.ConditionTypeNodeClassReady)
	}
}
