package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
)

// answer is what Karpenter would do. Pods are "namespace/name". All lists are sorted, whatever order Karpenter found
// them in; which of several equal places a pod gets is still Karpenter's choice and may differ between runs.
type answer struct {
	Name       string              `json:"name"`
	NodeClaims []nodeClaim         `json:"nodeClaims"`
	Existing   map[string][]string `json:"existing"`  // node: pods
	Errors     map[string]string   `json:"errors"`    // pods considered and not placed
	Ignored    map[string]string   `json:"ignored"`   // pods not considered, because they are not valid
	Deferred   []string            `json:"deferred"`  // those of Errors that wait for reserved capacity
	Unreached  []string            `json:"unreached"` // pods that the time was too short for
	Price      float64             `json:"price"`
	// Seconds are for preparing and solving, SolveSeconds for solving alone, DisruptSeconds for the search of commands.
	Seconds        float64 `json:"seconds"`
	SolveSeconds   float64 `json:"solveSeconds"`
	DisruptSeconds float64 `json:"disruptSeconds,omitempty"`
	// Commands are those of the first method that has any, Methods what each of them found if the scenario asks for it.
	Commands []command     `json:"commands,omitempty"`
	Methods  []examination `json:"methods,omitempty"`
	Error    string        `json:"error,omitempty"`
}

// nodeClaim is one node to open. InstanceTypes are by price. Price is that of the cheapest offering it may use,
// "instance type/zone/capacity type". Requirements and Requests are those of the NodeClaim that would be created; the
// requirement for instance types is left out.
type nodeClaim struct {
	NodePool      string              `json:"nodePool"`
	Pods          []string            `json:"pods"`
	InstanceTypes []string            `json:"instanceTypes"`
	Cheapest      string              `json:"cheapestOffering"`
	Price         float64             `json:"price"`
	Requirements  requirements        `json:"requirements"`
	Requests      corev1.ResourceList `json:"requests"`
	Relaxed       bool                `json:"minValuesRelaxed"`
}

// describe turns the results of a pass over pods into an answer.
func describe(results scheduling.Results, pods []*corev1.Pod) answer {
	found := answer{
		NodeClaims: []nodeClaim{}, Existing: map[string][]string{}, Errors: map[string]string{}, Deferred: []string{},
	}
	for _, claim := range results.NewNodeClaims {
		found.NodeClaims = append(found.NodeClaims, describeClaim(claim))
	}
	slices.SortFunc(found.NodeClaims, func(a, b nodeClaim) int {
		return cmp.Or(cmp.Compare(a.NodePool, b.NodePool), slices.Compare(a.Pods, b.Pods))
	})
	for _, claim := range found.NodeClaims {
		found.Price += claim.Price
	}
	for _, node := range results.ExistingNodes {
		if len(node.Pods) > 0 {
			found.Existing[node.Name()] = keys(node.Pods)
		}
	}
	for pod, err := range results.PodErrors {
		found.Errors[key(pod)] = err.Error()
		if scheduling.IsReservedOfferingError(err) {
			found.Deferred = append(found.Deferred, key(pod))
		}
	}
	slices.Sort(found.Deferred)
	found.Unreached = found.without(pods)
	return found
}

// without lists the pods that the answer says nothing about.
func (a answer) without(pods []*corev1.Pod) []string {
	told := map[string]bool{}
	for _, claim := range a.NodeClaims {
		for _, pod := range claim.Pods {
			told[pod] = true
		}
	}
	for _, placed := range a.Existing {
		for _, pod := range placed {
			told[pod] = true
		}
	}
	return lo.Filter(keys(pods), func(pod string, _ int) bool { return !told[pod] && a.Errors[pod] == "" })
}

func describeClaim(claim *scheduling.NodeClaim) nodeClaim {
	byPrice := lo.Filter(claim.InstanceTypeOptions.OrderByPrice(claim.Requirements), func(t *cloudprovider.InstanceType, _ int) bool {
		return len(usable(t, claim)) > 0
	})
	made := claim.ToNodeClaim()
	found := nodeClaim{
		NodePool:      claim.NodePoolName,
		Pods:          keys(claim.Pods),
		InstanceTypes: lo.Map(byPrice, func(t *cloudprovider.InstanceType, _ int) string { return t.Name }),
		Requirements:  settled(made),
		Requests:      made.Spec.Resources.Requests,
		Relaxed:       made.Annotations[v1.NodeClaimMinValuesRelaxedAnnotationKey] == "true",
	}
	if len(byPrice) > 0 {
		cheapest := usable(byPrice[0], claim).Cheapest()
		found.Price = cheapest.Price
		found.Cheapest = fmt.Sprintf("%s/%s/%s", byPrice[0].Name, cheapest.Zone(), cheapest.CapacityType())
	}
	return found
}

// usable are the offerings of a type that the claim could be launched as. A claim that holds reservations may list types
// that have none.
func usable(t *cloudprovider.InstanceType, claim *scheduling.NodeClaim) cloudprovider.Offerings {
	return t.Offerings.Available().Compatible(claim.Requirements)
}

// settled are the requirements of a claim, sorted; for a label that the claim itself decides (one that a NodePool only
// asks to exist), that decision.
func settled(claim *v1.NodeClaim) requirements {
	found := requirements{}
	for _, r := range claim.Spec.Requirements {
		if r.Key == corev1.LabelInstanceTypeStable {
			continue
		}
		if value, ok := claim.Labels[r.Key]; ok && r.Operator != corev1.NodeSelectorOpIn {
			r.Operator, r.Values = corev1.NodeSelectorOpIn, []string{value}
		}
		slices.Sort(r.Values)
		found = append(found, r)
	}
	slices.SortFunc(found, func(a, b v1.NodeSelectorRequirementWithMinValues) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
	})
	return found
}

func key(pod *corev1.Pod) string {
	return pod.Namespace + "/" + pod.Name
}

func keys(pods []*corev1.Pod) []string {
	found := lo.Map(pods, func(pod *corev1.Pod, _ int) string { return key(pod) })
	slices.Sort(found)
	return found
}
