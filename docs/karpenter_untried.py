"""Karpenter's specs that no test of ours restates, each with the reason.

Every spec of a file that has an entry here is either cited by a test (`@pytest.mark.karpenter`) or listed; the page
`karpenter-map.md` shows the list, and a test fails if a spec is in neither place or in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TABLE: Final = "the name of a table; its entries are listed by themselves"
IN_MEMORY: Final = (
    "bookkeeping of Karpenter's in-memory cluster state; here each run reads the objects, and keeps nothing"
)
SYNCED: Final = "here each run lists Nodes and NodeClaims before it decides, and none of its lists may fail"
CONCURRENT: Final = (
    "two goroutines share memory; here one run at a time decides, and each works on an immutable snapshot"
)
POD_HISTORY: Final = (
    "needs the time of a pod's first scheduling decision, which is not stored (metrics.md lists these metrics)"
)
HOOKS: Final = "registration hooks are an interface for Go code of cloud providers; no object can name one"
QUEUE: Final = "the eviction queue is memory; here each run decides from the pods and the stored termination time"
RESERVATION: Final = (
    "a reservation in memory; here names of NodeClaims are derived from the replica, so that a repeat creates none"
)
ARGUMENTS: Final = "an interface between Go packages, without an effect that a user could notice"
EVENT_FILTER: Final = (
    "a filter of watch events; here the forwarder and the sweep start the step, which then reads the NodePool"
)
SHARED_MEMORY: Final = "which parts of an instance type Go values share in memory, or how much of it they take"
NIL: Final = "a nil pointer, or a virtual pod made by hand; here every virtual pod is made with all its annotations"
BATCHER: Final = "a timer in Karpenter's process; here the forwarder collects changes of pods for a moment before it sends one message"
GO_VARIABLE: Final = "needs a variable of a Go package, which only another program built with it can set"
UNCHANGED: Final = "Karpenter's memory that nothing has changed since consolidation found nothing; here each run evaluates the nodes as they are"
OVERSIZED: Final = (
    "differs on purpose: a DaemonSet that fits on no instance type stays pending whatever is launched, so that it counts "
    "for nothing, and a Warning on it says so; with Karpenter one such DaemonSet keeps all pods of the cluster pending"
)
ONE_SNAPSHOT: Final = "here a NodeClaim is made from the snapshot that it was planned with"
RESERVED_AT_ONCE: Final = (
    "differs on purpose: a plan assigns each reserved instance to one NodeClaim, so that the pods beyond the reservation "
    "get other capacity in the same pass; Karpenter lets them wait for the next one"
)
ZONE_OF_OTHERS: Final = (
    "differs: the gauge counts the zones that selectors and volumes allow (metrics.md); topology spread and pod affinity "
    "decide while pods are placed"
)
ONE_CAPACITY: Final = "needs offerings of one type with different capacity, which no cloud provider here has"
DORMANT: Final = "without an effect in Karpenter as well: it keeps predictions of requests that nothing reads"
NIL_TAINT: Final = "a nil pointer"
RESERVED_TABLE: Final = (
    "a table in memory while one plan is made; what it decides is tried through plans, in Karpenter's scheduling suite"
)
HYDRATED: Final = "Karpenter's memory of allocated devices as it fills; here each run lists the ResourceClaims"
ALLOCATIONS: Final = "how Karpenter's memory of allocated devices follows changes of ResourceClaims; here each run reads the claims as they are"
ATTRIBUTE_BINDINGS: Final = (
    "attribute bindings are values of a cloud provider's Go code: devices of an instance type that will share an attribute "
    "whose value is not known yet; no provider declares any, and no object can"
)
NO_TYPE_LEFT: Final = "a NodeClaim that lost all its instance types, which no plan has"

UNTRIED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "apis/v1/nodepool_budgets": {},
    "capacitybuffer": {
        "here the sweep starts provisioning each minute while a buffer exists, so that a mended reference is soon noticed": (
            "should NOT trigger the provisioner when resolution fails",
        ),
    },
    "capacitybuffer/helpers": {},
    "disruption": {},
    "disruption/balanced": {},
    "disruption/balanced_adversarial": {
        "prices are read from price lists as decimal text, which has no NaN": (
            "should not allow NaN price to poison NodePool totals",
        ),
    },
    "disruption/balanced_integration": {},
    "disruption/balanced_scoring": {
        "a command without candidates is a no-op, which is neither scored nor proposed": (
            "should reject when command has zero candidates",
        ),
        "totals are computed for every NodePool with the policy Balanced; none can be missing": (
            "should reject when candidate NodePool is missing from totals map",
        ),
    },
    "disruption/consolidation": {
        UNCHANGED: (
            "should not mark empty node consolidated if the candidates can't be disrupted due to budgets with one nodepool",
            "should not mark empty node consolidated if all candidates can't be disrupted due to budgets with many nodepools",
            "should not mark multi node consolidated if the candidates can't be disrupted due to budgets with one nodepool",
            "should not mark multi node consolidated if all candidates can't be disrupted due to budgets with many nodepools",
            "should not mark single node consolidated if the candidates can't be disrupted due to budgets with one nodepool",
            "should not mark single node consolidated if all candidates can't be disrupted due to budgets with many nodepools",
        ),
        "differs on purpose: a node with buffer pods only is not empty, and may be replaced by a cheaper one for these pods": (
            "should skip buffer-only nodes in single-node consolidation but protect via emptiness",
        ),
    },
    "disruption/consolidation_dra": {},
    "disruption/emptiness": {},
    "disruption/queue": {
        IN_MEMORY: (
            "should not return an error when the NodeClaim doesn't exist but the NodeCliam is in cluster state",
        ),
    },
    "disruption/singlenodeconsolidation": {},
    "disruption/drift": {},
    "disruption/staticdrift": {},
    "dynamicresources/deviceallocation": {
        HYDRATED: (
            "blocks until hydration completes",
            "does not block on subsequent calls after hydration",
            "returns a context error when the context is canceled before hydration completes",
            "returns a copy that is not affected by subsequent reconciliations",
        ),
        ALLOCATIONS: (
            "removes a device when its only ResourceClaim is deleted",
            "removes only the deleted claim's devices when a subset of claims is deleted",
            "does not remove a shared device when one of multiple claims that allocate it is deleted",
            "removes devices when a claim is deleted and recreated without an allocation",
            "replaces devices when a claim is deleted and recreated with a different allocation",
            "removes stale devices and adds new ones when a claim is recreated with different devices",
            "retains a shared device when one claim drops it but another claim still references it",
            "clears the allocation entirely when a claim's allocation is set to nil",
            "becomes releasable when a claim is updated from non-pod to pod-only reservation",
            "becomes releasable when the only non-pod claim sharing a device is deleted",
            "becomes non-releasable when a claim's reservations are cleared",
            "reduces aggregated capacity when one of multiple shared claims is deleted",
            "removes shared device entirely when all claims with capacity are deleted",
            "updates capacity when a claim is recreated with more capacity on the same device",
            "removes stale devices when a claim's allocation replaces one shared device with another",
            "transitions a device from shared to exclusive when all capacity claims are deleted",
            "transitions a device from exclusive to shared when a second claim with capacity references it",
        ),
    },
    "metrics/node": {},
    "metrics/nodepool": {},
    "metrics/pod": {
        POD_HISTORY: (
            "should update the pod bound and unbound time metrics",
            "should update the pod startup and unstarted time metrics",
            "should create and delete provisioning undecided metrics based on scheduling simulatinos",
            "should delete provisioning undecided metrics based on pod deletes",
            "should delete provisioning undecided metrics when the pod is already bound",
            "should delete pod unbound and unstarted time metrics on pod delete",
            "should delete pod unbound and unstarted time metrics when pod schedulable time is zero",
            "should delete provisioning undecided metrics when the pod has a NodeName but PodScheduled condition is not True",
            "should delete provisioning undecided metrics when the pod is terminal without PodScheduled condition being True",
        ),
    },
    "node/health": {},
    "node/hydration": {TABLE: ("Hydration",)},
    "node/termination": {},
    "node/termination/terminator": {
        CONCURRENT: ("should ensure that calling Evict() is valid while making Add() calls",),
        QUEUE: (
            "should keep the earlier deadline when Add is called again with a looser one",
            "should clean up the queue entry when the pod is already gone",
        ),
    },
    "nodeclaim/disruption": {},
    "nodeclaim/disruption/consolidation": {},
    "nodeclaim/consistency": {TABLE: ("Node Shape",)},
    "nodeclaim/disruption/drift": {TABLE: ("", "Drift", "InstanceTypeNotFound")},
    "nodeclaim/expiration": {TABLE: ("Expiration",)},
    "nodeclaim/garbagecollection": {},
    "nodeclaim/hydration": {TABLE: ("Hydration",)},
    "nodeclaim/lifecycle": {},
    "nodeclaim/lifecycle/initialization": {TABLE: ("Initialization",)},
    "nodeclaim/lifecycle/launch": {TABLE: ("Launch",)},
    "nodeclaim/lifecycle/liveness": {TABLE: ("Liveness",)},
    "nodeclaim/lifecycle/registration": {
        TABLE: ("Registration",),
        HOOKS: (
            "should complete registration when a single hook passes",
            "should defer registration when a hook returns false",
            "should return error when a hook returns an error",
            "should defer registration when the second hook returns false with multiple hooks",
            "should complete registration when multiple hooks all pass",
            "should call all hooks in parallel and list all pending hooks in status",
            "should complete registration after a hook transitions from not ready to ready",
            "should complete registration with empty hooks slice",
            "should complete registration with nil hooks slice",
            "should propagate labels added by a registration hook to both the node and the nodeclaim",
        ),
    },
    "nodeclaim/lifecycle/termination": {TABLE: ("Termination",)},
    "nodeclaim/podevents": {},
    "nodeoverlay": {
        "here overlays are applied in each run, without an interval": (
            "should use normal requeue interval when all NodePools succeed",
        ),
    },
    "nodeoverlay/store": {
        TABLE: ("should handle different overlay scenarios",),
        SHARED_MEMORY: (
            "price overlay only - offerings copied, others shared",
            "capacity overlay only - capacity copied, others shared",
            "both overlays - only modified fields copied",
        ),
        ARGUMENTS: ("should integrate overlays through the public interface",),
        "here the run that plans applies the overlays, to every NodePool": (
            "should return error for unevaluated node pool",
        ),
    },
    "nodeoverlay/store_memory": {
        SHARED_MEMORY: (
            "should have minimal allocations when no overlays are applied",
            "should have controlled allocations with price-only overlays",
            "should have controlled allocations with capacity-only overlays",
            "should have controlled allocations with both price and capacity overlays",
            "should scale linearly with node pool count",
            "1 nodepool",
            "5 nodepools",
            "10 nodepools",
            "20 nodepools",
            "50 nodepools",
            "should scale linearly with instance type count",
            "50 instance types",
            "100 instance types",
            "200 instance types",
            "500 instance types",
        ),
    },
    "nodepool/counter": {},
    "nodepool/hash": {},
    "nodepool/readiness": {},
    "nodepool/registrationhealth": {},
    "nodepool/validation": {},
    "provisioning": {
        GO_VARIABLE: (
            "should expect nodeclaim terminationGracePeriod to be the global value when the nodepool terminationGracePeriod is not set",
            "should respect terminationGracePeriod value set on the nodePool over global terminationGracePeriod",
        ),
        POD_HISTORY: (
            "should mark podHealthyNodePoolScheduledTime if it is scheduled against a nodePool with NodeRegistrationHealthy=true",
            "should not mark podHealthyNodePoolScheduledTime if it is scheduled against a nodePool with NodeRegistrationHealthy=False",
        ),
        ONE_SNAPSHOT: (
            "should not use a different NodePool hash on the NodeClaim if the NodePool changes during scheduling",
        ),
        OVERSIZED: (
            "should not schedule if daemonset overhead is too large",
            "should not schedule if resource requests are not defined and limits (requests) are too large",
            "should not schedule if combined max resources are too large for any node",
            "should not schedule if initContainer resources are too large",
        ),
    },
    "provisioning/buffers": {
        NIL: (
            "should return empty string for nil pod",
            "should return empty string when namespace annotation is missing",
            "should return empty string when name annotation is missing",
            "should return false for nil pod",
        ),
    },
    "provisioning/dra": {},
    "provisioning/dra_internal": {},
    "provisioning/scheduling": {
        "its test taints the Node in the API only; Karpenter's own state keeps it, as here, from pods once it is initialized": (
            "should consider a tainted NotReady node as in-flight even if initialized",
        ),
        GO_VARIABLE: (
            "should not launch nodes for pod with storageClass that uses an unsupported provisioner",
            "should not launch nodes for pod with bound persistentVolume that uses an unsupported provisioner",
            "should not launch nodes for pod with storageClass that uses an unsupported topology key",
        ),
        "a gauge that changes while a plan is made; here a plan is made within one invocation (metrics.md)": (
            "should surface the queueDepth metric while executing the scheduling loop",
        ),
        POD_HISTORY: ("should set the PodSchedulerDecisionSeconds metric after a scheduling loop",),
        ZONE_OF_OTHERS: (
            "when pods have required pod affinity",
            "when pods have required pod anti-affinity",
            "when pods have restricting TSCs",
            "when TSC is unsatisfiable",
            "when pod affinity is unsatisfiable",
            "when pod anti-affinity is unsatisfiable",
        ),
        RESERVED_AT_ONCE: (
            "shouldn't fallback to on-demand or spot when compatible reserved offerings are available",
            "shouldn't fallback to a lower weight NodePool if a reserved offering is available",
            "shouldn't relax preferences when a pod fails to schedule due to a reserved offering error",
        ),
        ONE_CAPACITY: (
            "should only select instance types whose offerings have CapacityOverride when pod requests an override resource",
            "should reject instance type when override allocatable fits but override offerings are unavailable",
        ),
    },
    "provisioning/scheduling/defaultconstraints": {},
    "provisioning/scheduling/dra_internal": {
        "differs on purpose: a pod whose ResourceClaim has yet to be made from its template waits; Karpenter schedules it as if it needed no devices": (
            "should skip when no matching status entry exists",
        ),
        ARGUMENTS: ("should map identity, nodepool, and instance types",),
    },
    "provisioning/scheduling/instance_selection": {
        GO_VARIABLE: (
            "schedule should fail if minimum number of InstanceTypes is not met as per the minValues in the requirement after truncation",
        ),
    },
    "provisioning/scheduling/topology": {
        "kube-apiserver refuses such a selector since Kubernetes 1.27, and Karpenter skips the test": (
            "should not spread an invalid label selector",
        ),
        "differs on purpose: a value counts once a node has it, as for kube-scheduler; Karpenter leaves the second pod pending": (
            "should balance pods across a label when discovered from the nodepool (NodeTaintsPolicy=ignore)",
        ),
    },
    "provisioning/scheduling/reservationmanager": {
        RESERVED_TABLE: (
            "should return true when capacity is available",
            "should return true when hostname already has the reservation",
            "should return false when capacity is exhausted",
            "should return true for existing hostname even when capacity is exhausted",
            "should panic with non-existent reservation ID",
            "should successfully reserve capacity",
            "should not double-reserve for the same hostname and reservation",
            "should decrement available capacity",
            "should handle multiple offerings in a single call",
            "should handle mixed new and existing reservations",
            "should panic when trying to over-reserve",
            "should release a single reservation",
            "should handle releasing non-existent reservations gracefully",
            "should handle releasing from non-existent hostname gracefully",
            "should handle partial releases",
            "should restore capacity when releasing reservations",
            "should correctly track capacity after multiple reserve/release cycles",
            "should handle complex reservation patterns",
            "should maintain consistency during mixed operations",
        ),
    },
    "scheduling/dynamicresources/attributebindings": {
        ATTRIBUTE_BINDINGS: (
            "returns empty bindings when given no instance types",
            "returns empty bindings when instance types have no AttributeBindings",
            "skips a binding with fewer than 2 devices",
            "skips a binding with zero devices",
            "creates a symmetric pair from a 2-device binding",
            "creates all-pairs bindings from a 3-device binding",
            "accumulates device maps when multiple bindings share the same attribute, node pool, and instance type",
            "binding is transitive across separate AttributeBinding declarations",
            "transitive closure extends beyond a single intermediate device",
            "a duplicate device entry in a binding does not prevent real bindings",
            "all-duplicate devices in a binding produces no real bindings",
            "transitive closure handles cycles correctly",
            "same device pair can be bound independently under multiple attributes",
            "transitivity does not cross attribute boundaries",
            "tracks different attributes independently",
            "tracks the same attribute across different node pools independently",
            "tracks the same attribute across multiple instance types in a pool independently",
            "returns true for a fully known tuple",
            "is symmetric: Bound(A, B) and Bound(B, A) are both true",
            "returns false for an unknown attribute",
            "returns false for an unknown node pool",
            "returns false for an unknown instance type",
            "returns false for an unknown deviceA",
            "returns false when deviceB is not in deviceA's binding set",
            "returns true when deviceA and deviceB are the same device with bindings",
            "returns false when deviceA and deviceB are the same device without bindings",
            "returns false on a nil AttributeBindings",
            "returns true for a device that participates in a binding",
            "returns false for a device not in any binding group",
        ),
    },
    "scheduling/dynamicresources/constraint": {
        ATTRIBUTE_BINDINGS: (
            "should accept two bound devices that both lack the attribute",
            "should reject the first device if it has no binding entries",
            "should reject unbound devices that lack the attribute",
            "should not use bindings when concrete values are present",
            "should reject concrete values after binding was established",
            "should reject binding fallback after concrete value was established",
            "should reset evaluation path on full backtrack",
            "should accept a third bound device via transitivity",
            "should allow re-establishing via binding after full backtrack from binding",
            "should clear UsedBinding flag on Reset allowing switch to concrete path",
            "should use binding fallback when reached via parent-match sub-request",
            "should skip binding fallback for non-matching sub-request",
        ),
        "kube-apiserver refuses a constraint on an attribute without a domain": (
            "should return nil when attribute name has no domain separator",
        ),
    },
    "scheduling/dynamicresources/pool": {
        "kube-apiserver refuses a ResourceSlice whose node selector has not one term; here it counts for no node": (
            "should match a slice when any NodeSelectorTerm is compatible",
        ),
        "differs on purpose: a broken pool of which a node reaches no device keeps no device of other pools from it; with Karpenter a request for all devices then fails everywhere": (
            "should preserve invalid pool through filtering even when all slices become incompatible",
        ),
        ARGUMENTS: (
            "should panic when a potential slice is provided",
            "should panic when a pool contains potential slices",
        ),
        SHARED_MEMORY: ("should not mutate the original pool's NonTargetingDevices when filtering multiple times",),
    },
    "scheduling/dynamicresources/request": {
        ATTRIBUTE_BINDINGS: ("should pass bindingFallback to MatchAttribute constraints",),
        ARGUMENTS: (
            "should set parent RequestData with name and SubRequests only (no class/selectors)",
            "should skip non-CEL selectors",
        ),
    },
    "scheduling/dynamicresources/types": {
        ARGUMENTS: (
            "should return the correct driver",
            "should return the correct pool",
            "should return Potential() as false",
            "should return Potential() as true",
            "should return nil NodeSelector",
            "should return false for AllNodes",
        ),
        SHARED_MEMORY: ("should cache devices on repeated calls",),
    },
    "scheduling/dynamicresources/allocator": {
        TABLE: (
            "should reject allocation when device references invalid counters",
            "records the winning (sub-)request name on each allocated device",
        ),
        ATTRIBUTE_BINDINGS: (
            "should not leak binding fallback state between instance type iterations",
            "should use attribute binding fallback end-to-end through Allocate",
            "should fail when no consistent constraint evaluation path exists across devices",
            "should succeed when all devices use binding path consistently",
        ),
        NO_TYPE_LEFT: (
            "should empty TotalRequirements when all instance types are released",
            "should release template counter budget when instance type is pruned",
            "should release template capacity when IT is released",
        ),
    },
    "scheduling/requirement": {
        ARGUMENTS: (
            "should have the right values",
            "should have the correct length",
            "should return any",
            "should print the right string",
        ),
    },
    "scheduling/requirements": {ARGUMENTS: ("should print Requirements in the same order",)},
    "scheduling/taints": {NIL_TAINT: ("returns false for a nil taint",)},
    "scheduling/hostportusage": {
        ARGUMENTS: ("String() output",),
    },
    "state": {
        POD_HISTORY: (
            "should not store pod schedulable time if the nodePool that pod is scheduled to does not have NodeRegistrationHealthy=true",
            "should store pod schedulable time if the nodePool that pod is scheduled to has NodeRegistrationHealthy=true",
            "should not update the pod schedulable time if it is already stored for a pod",
            "should delete the pod schedulable time if the pod is deleted",
            "should not store scheduling times for pods that are already bound to a node",
            "should only mark pods as schedulable once",
            "should delete pod schedulable time and pod to nodeClaim mapping if we get error for the pod",
            "should delete the pod mappings from memory when the pod is deleted",
        ),
        SYNCED: (
            "should consider the cluster state synced when all nodes are tracked",
            "should emit cluster_state_unsynced_time_seconds metric when cluster state is unsynced",
            "should consider the cluster state synced when nodes don't have provider id",
            "should consider the cluster state synced when nodes register provider id",
            "should consider the cluster state synced when all nodeclaims are tracked",
            "should consider the cluster state synced when a combination of nodeclaims and node are tracked",
            "should consider the cluster state synced when the representation of nodes is the same",
            "shouldn't consider the cluster state synced if a nodeclaim hasn't resolved its provider id",
            "shouldn't consider the cluster state synced if a nodeclaim isn't tracked",
            "shouldn't consider the cluster state synced if a node isn't tracked",
            "shouldn't consider the cluster state synced if a nodeclaim is added manually with UpdateNodeClaim",
            "shouldn't consider the cluster state synced if a nodeclaim without a providerID is deleted",
            "should consider the cluster state synced when a new node is added after the initial sync",
        ),
        CONCURRENT: (
            "should ensure that calling Synced() is valid while making updates to Nodes",
            "should ensure that calling Synced() is valid while making updates to NodeClaims",
            "should handle concurrent NodeClaim updates and state changes",
        ),
        IN_MEMORY: (
            "should handle events out of order",
            "should maintain the host port usage state when receiving NodeClaim updates",
            "should ignore the host port usage conflict if the pod update is for an already tracked pod",
            "should delete daemonset in cache when daemonset is deleted",
            "should be a no-op when NodeClaim is already tracked and no state change",
            "should handle NodeClaim cleanup correctly",
            "should handle marking multiple NodeClaims",
            "should handle marking multiple NodeClaims for deletion",
            "should handle unmarking multiple NodeClaims",
            "should return false for unknown providerIDs",
            "should track buffer pods after UpdateBufferPodCounts",
            "should clear old entries when UpdateBufferPodCounts is called with new map",
            "should clear all entries when called with empty map",
            "should not store entries with count zero",
        ),
        "whether anything changed since the last consolidation; here each consolidate run evaluates the cluster as it is": (
            "should update the consolidated value when setting consolidation",
            "should update the consolidated value when state timeout (5m) has passed and state hasn't changed",
            "should cause consolidation state to change when a NodePool is updated",
        ),
    },
    "state/informer/vpa": {
        DORMANT: (
            "should compute predictions correctly",
            "basic recommendation",
            "skip VPAs with updateMode Off",
            "clamp recommendations to min/max bounds",
            "prefer specific container policy over wildcard",
            "apply startup boost factor to CPU prediction",
            "apply startup boost quantity to CPU prediction",
            "prefer per-container startup boost over VPA-level",
            "should skip containers with mode Off",
            "should only include controlled resources",
            "should populate the store only after recommendation is set",
            "should remove predictions when VPA is deleted",
            "should retry target resolution on transient failure",
            "should use the oldest VPA's prediction and promote runner-up on deletion",
            "should not hydrate on transient errors",
        ),
    },
    "state/nodeclaimgc": {
        IN_MEMORY: (
            "should heal the wedge caused by a seed landing after the informer's delete cleanup",
            "should not evict an unlaunched NodeClaim that still exists after the grace period",
            "should not evict a launched entry even if its NodeClaim no longer exists",
            "should be a no-op when the entry was already cleaned up",
        ),
    },
    "state/statenodepool": {
        RESERVATION: ("should release reserved capacity", "should handle releasing more than reserved"),
        CONCURRENT: (
            "should be thread-safe with concurrent reservations",
            "should be thread-safe with concurrent releases",
        ),
    },
    "static/deprovisioning": {
        TABLE: ("scales down in disruption cost order",),
        EVENT_FILTER: ("should detect replica changes", "should return false for identical replicas"),
    },
    "static/provisioning": {
        RESERVATION: ("should reserve nodepool nodecount during provisioning and release after",),
        SYNCED: ("should wait for cluster to be synced and not over provision",),
        EVENT_FILTER: (
            "should detect replica or status changes",
            "replica changed",
            "replica same, false → true",
            "replica same, true → false",
            "replica same, both true",
            "replica same, both false",
        ),
    },
}
