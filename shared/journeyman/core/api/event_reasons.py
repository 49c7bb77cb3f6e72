"""The table of Kubernetes Events: reason, type, objects, meaning, what to do, and how long a repeat is suppressed.

Karpenter's reasons keep Karpenter's type and window. Besides these, every change of a status condition is an Event whose
reason is the condition's type (`core.state.condition_transitions`).

Restates: karpenter pkg/events/recorder.go, pkg/controllers/disruption/events/events.go,
pkg/controllers/node/termination/terminator/events/events.go.
Restates: karpenter-provider-aws pkg/controllers/interruption/events/events.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal

from msgspec import Struct

EventType = Literal["Normal", "Warning"]

DEFAULT_DEDUPE_WINDOW: Final = timedelta(minutes=2)  # karpenter pkg/events/recorder.go: defaultDedupeTimeout


class EventReason(Struct, frozen=True, kw_only=True):
    """One Event reason: what it means, and what to do (empty if nothing needs to be done)."""

    reason: str
    kinds: tuple[str, ...]
    meaning: str
    what_to_do: str = ""
    type: EventType = "Normal"
    is_karpenters: bool = True
    dedupe_window: timedelta = DEFAULT_DEDUPE_WINDOW


_NODE: Final = ("Node", "NodeClaim")
_NODE_CLASS: Final = ("EC2NodeClass", "ECSNodeClass", "CCENodeClass")

_SCHEDULING: Final = (
    EventReason(
        reason="Nominated",
        kinds=("Pod",),
        meaning="The pod should schedule on the named Node or NodeClaim.",
    ),
    EventReason(
        reason="AwaitingInitialization",
        kinds=("Pod",),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=5),
        meaning="The pod waits for a node that registered over a minute ago and is not initialized yet; the message says what is "
        "missing.",
        what_to_do="Check the DaemonSet that removes the taint, or the device plugin that registers the resource. A node without "
        "pods is deleted after INITIALIZATION_TIMEOUT.",
    ),
    EventReason(
        reason="FailedScheduling",
        kinds=("Pod",),
        type="Warning",
        dedupe_window=timedelta(minutes=5),
        meaning="No existing node and no NodePool can run the pod; or the scheduler's time did not suffice for it, as the "
        "message then says.",
        what_to_do="Read the reason for each NodePool in the message; change the pod's requirements, or the NodePool's. If the "
        "time did not suffice, use fewer node affinity terms, topology spread constraints and pod (anti-)affinity terms.",
    ),
    EventReason(
        reason="DaemonSetLeftOut",
        kinds=("NodePool", "DaemonSet"),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=15),
        meaning="Beside all DaemonSets no instance type of the NodePool holds any pod that waits for it. Its nodes are planned "
        "without the DaemonSets in the message, those of the lowest priority; their pods stay pending where they do not fit.",
        what_to_do="Lower the requests of the DaemonSets, keep some off the NodePool by node affinity, or allow larger instance "
        "types. A DaemonSet with a higher priority than the pods is never left out for them.",
    ),
    EventReason(
        reason="LaunchDelayed",
        kinds=("Pod",),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=1),
        meaning="A node was launched for the pod and joined, and the pod does not run there: the node is too small, or "
        "kube-scheduler does not bind the pod to it. The next launch for it waits: two minutes, then twice as long each time, at most "
        "an hour. Nodes that exist are still used.",
        what_to_do="Read what the node offers, or kube-scheduler's reason: another pod may use the same ReadWriteOncePod volume, or a "
        "local volume may have been on a node that is gone. A change of the pod's template, of a NodePool or of a NodeClass ends the wait.",
    ),
    EventReason(
        reason="NoCompatibleInstanceTypes",
        kinds=("NodePool",),
        type="Warning",
        dedupe_window=timedelta(minutes=1),
        meaning="The NodePool's requirements filter out every available instance type.",
        what_to_do="Relax the requirements or minValues of the NodePool, or check the status of its NodeClass.",
    ),
    EventReason(
        reason="InsufficientCapacityError",
        kinds=("NodeClaim", "NodePool"),
        type="Warning",
        meaning="The cloud has no capacity for any offering that the launch may use. The NodeClaim is deleted and its pods "
        "are scheduled again without those offerings.",
        what_to_do="Allow more instance types, zones or capacity types in the NodePool if it happens often.",
    ),
    EventReason(
        reason="LaunchFailed",
        kinds=("NodePool", *_NODE_CLASS, "NodeClaim", "Pod"),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=5),
        meaning="A launch failed for another reason than capacity, or an instance ended before or soon after its node joined. The "
        "message names the object at fault, and has the cloud's own words. That object is skipped for 30 seconds, twice as long "
        "after each further failure, at most an hour, or five minutes if a payment, a right or a quota is missing; then one NodeClaim "
        "tries again. Other NodePools serve the pods meanwhile.",
        what_to_do="Do what the message says. A change of the NodeClass or NodePool ends the wait at once; after a change elsewhere, "
        "`kubectl delete offeringstate NODECLASS` does.",
    ),
    EventReason(
        reason="NodeLimitReached",
        kinds=("NodePool",),
        type="Warning",
        is_karpenters=False,
        meaning="limits.nodes of a static NodePool is lower than its replicas.",
        what_to_do="Raise limits.nodes or reduce replicas.",
    ),
    EventReason(
        reason="StaticCapacityDisabled",
        kinds=("NodePool",),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(hours=24),
        meaning="The NodePool has spec.replicas, and the feature gate StaticCapacity is off, so it gets no nodes.",
        what_to_do="Set FEATURE_GATES=StaticCapacity=true for the functions (template.yaml: FeatureGates), or remove spec.replicas.",
    ),
    EventReason(
        reason="InvalidAnnotation",
        kinds=("NodePool", "CapacityBuffer", *_NODE),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=15),
        meaning="A journeyman.dev annotation has an invalid value, and is ignored; of a pause or cap, it lets no node go.",
        what_to_do="Correct the annotation, of the NodePool or of the pod's template; the message says which values are valid.",
    ),
    EventReason(
        reason="InvalidSchedule",
        kinds=("NodePool",),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=15),
        meaning="The schedule of a disruption budget does not parse, so the budget allows no disruption.",
        what_to_do="Correct the schedule: five fields of cron, or a macro such as @daily.",
    ),
    EventReason(
        reason="TooManyPreferences",
        kinds=("Pod",),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=15),
        meaning="The pod has more preferences (preferred affinity terms and ScheduleAnyway constraints) than are relaxed one "
        "by one: where not all can be met, the message says how many are dropped together. One of equal pods gets the Event.",
        what_to_do="Remove preferences from the workload's pod template.",
    ),
)

_LIFECYCLE: Final = (
    EventReason(
        reason="NodeClassNotReady",
        kinds=("NodeClaim",),
        type="Warning",
        meaning="The NodeClass cannot be used for launches. The NodeClaim is deleted and its pods are scheduled again.",
        what_to_do="Read the conditions of the NodeClass.",
    ),
    EventReason(
        reason="AllocatableNotBelieved",
        kinds=_NODE,
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(hours=1),
        meaning="The node reports over 10 % more CPU, memory or pods than its instance type has. What it was launched with counts "
        "instead, and nothing is learned from it.",
        what_to_do="Find out what writes the Node's status; a kubelet reports what its machine has.",
    ),
    EventReason(
        reason="LimitsExceeded",
        kinds=("NodeClaim",),
        type="Warning",
        is_karpenters=False,
        meaning="With the NodeClaim, its NodePool would exceed its limits: several runs created NodeClaims at once, or the "
        "limits were reduced. The NodeClaim is deleted before it is launched.",
        what_to_do="Raise the NodePool's limits if its pods stay pending.",
    ),
    EventReason(
        reason="DisruptionRolledBack",
        kinds=("NodeClaim",),
        type="Warning",
        is_karpenters=False,
        meaning="The disruption command of this replacement was rolled back before the launch. The NodeClaim is deleted.",
    ),
    EventReason(
        reason="LaunchTimedOut",
        kinds=_NODE,
        type="Warning",
        is_karpenters=False,
        meaning="The NodeClaim was not launched within the launch timeout, and is deleted.",
        what_to_do="Read the Launched condition of the NodeClaim for the cloud's error.",
    ),
    EventReason(
        reason="RegistrationTimedOut",
        kinds=_NODE,
        type="Warning",
        is_karpenters=False,
        meaning="The instance did not register as a node within the registration timeout. The NodeClaim is deleted.",
        what_to_do="Check the node's bootstrap log, its network path to the API server and its IAM role's access entry.",
    ),
    EventReason(
        reason="Expiring",
        kinds=_NODE,
        is_karpenters=False,
        meaning="The node reaches its expireAfter soon. What its pods need is launched now; it is drained once that is ready, and at the "
        "time in the message at the latest.",
    ),
    EventReason(
        reason="InitializationTimedOut",
        kinds=_NODE,
        type="Warning",
        is_karpenters=False,
        meaning="The node registered, and was not initialized within INITIALIZATION_TIMEOUT: a startup taint stays, or a resource "
        "that its pods request was never registered. No pod runs there, so the NodeClaim is deleted.",
        what_to_do="Check the DaemonSet that removes the taint, or the device plugin that registers the resource. "
        "karpenter.sh/do-not-disrupt on the Node keeps it.",
    ),
    EventReason(
        reason="MultipleNodeClaimsFound",
        kinds=("NodeClaim",),
        type="Warning",
        is_karpenters=False,
        meaning="Several NodeClaims have the same providerID, so the node is not registered for any of them.",
        what_to_do="Delete the NodeClaim that does not belong to the instance; its tags name the right one.",
    ),
    EventReason(
        reason="UnregisteredTaintMissing",
        kinds=("NodeClaim",),
        type="Warning",
        meaning="The node joined without the karpenter.sh/unregistered taint, so pods may run before it is set up.",
        what_to_do="Add the taint to the user data of a custom AMI.",
    ),
    EventReason(
        reason="FailedConsistencyCheck",
        kinds=("NodeClaim",),
        type="Warning",
        meaning="The node has less of a resource than its instance type should have.",
        what_to_do="Check the AMI and the kubelet configuration; VM_MEMORY_OVERHEAD_PERCENT corrects the memory estimate.",
    ),
    EventReason(
        reason="MetadataRestored",
        kinds=_NODE,
        type="Warning",
        is_karpenters=False,
        meaning="Labels, annotations, finalizers or owner references of Journeyman were removed or changed, and are restored.",
        what_to_do="Stop the tool or person that edits them; the message says what was restored.",
    ),
    EventReason(
        reason="InconsistentStatus",
        kinds=("NodeClaim",),
        type="Warning",
        is_karpenters=False,
        meaning="The NodeClaim's status says that its instance terminates, but it is not deleted. It is deleted now.",
    ),
    EventReason(
        reason="NodeNotFound",
        kinds=("NodeClaim",),
        type="Warning",
        is_karpenters=False,
        meaning="The Node of a registered NodeClaim no longer exists and did not come back. NodeClaim and instance are deleted.",
    ),
    EventReason(
        reason="NodeClaimNotFound",
        kinds=("Node",),
        type="Warning",
        is_karpenters=False,
        meaning="The Node was launched for a NodeClaim that no longer exists. The node and its instance are deleted.",
    ),
    EventReason(
        reason="MultipleNodesFound",
        kinds=_NODE,
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=30),
        meaning="A Node has the provider id of an instance whose NodeClaim has another Node. It is not counted, no pod is planned "
        "for it, and its pods keep the instance.",
        what_to_do="Find out who created the Node: a renamed kubelet, or a tenant with the right to create Nodes. Delete the Node.",
    ),
    EventReason(
        reason="InstanceNotFound",
        kinds=_NODE,
        type="Warning",
        is_karpenters=False,
        meaning="The instance of the NodeClaim ended. NodeClaim and Node are deleted.",
        what_to_do="Find out who terminated the instance, if it was not the cloud.",
    ),
    EventReason(
        reason="NodeDeleted",
        kinds=_NODE,
        is_karpenters=False,
        meaning="The Node was deleted. Its NodeClaim is deleted, and its instance once the node is drained.",
    ),
    EventReason(
        reason="NodePoolDeleted",
        kinds=_NODE,
        is_karpenters=False,
        meaning="The NodePool was deleted. Its NodeClaims are deleted with it.",
    ),
    EventReason(
        reason="NodeRepairBlocked",
        kinds=("Node",),
        type="Warning",
        dedupe_window=timedelta(minutes=15),
        meaning="The node is unhealthy and is not repaired, because more than 20 % of the nodes are unhealthy.",
        what_to_do="Find the common cause; delete single nodes by hand if they must be replaced.",
    ),
)

_TERMINATION: Final = (
    EventReason(
        reason="Evicted",
        kinds=("Pod",),
        meaning="The pod was evicted because its node is drained.",
    ),
    EventReason(
        reason="Disrupted",
        kinds=("Pod",),
        meaning="The pod was deleted to keep the node's terminationGracePeriod.",
    ),
    EventReason(
        reason="FailedDraining",
        kinds=("Node",),
        type="Warning",
        meaning="Pods keep the node from being drained; the message names them and their PodDisruptionBudget.",
        what_to_do="Allow a disruption in the PodDisruptionBudget, or set terminationGracePeriod on the NodePool.",
    ),
    EventReason(
        reason="AwaitingVolumeDetachment",
        kinds=("Node",),
        meaning="The node is drained; termination waits until its volumes are detached.",
        what_to_do="If it lasts, check the CSI driver's node and controller pods.",
    ),
    EventReason(
        reason="TerminationGracePeriodExpiring",
        kinds=_NODE,
        type="Warning",
        meaning="All pods of the node will be deleted by the time in the message.",
    ),
    EventReason(
        reason="FailedTermination",
        kinds=_NODE,
        type="Warning",
        meaning="The cloud refused to terminate the instance; it is tried again.",
        what_to_do="Read the cloud's error in the message; check termination protection and permissions.",
    ),
    EventReason(
        reason="InvalidDoNotDisruptAnnotation",
        kinds=("Pod",),
        type="Warning",
        meaning="The pod's karpenter.sh/do-not-disrupt annotation has an invalid value, and is ignored.",
        what_to_do='Set it to "true" or to a duration such as 4h.',
    ),
    EventReason(
        reason="DoNotDisruptUntil",
        kinds=("Pod",),
        meaning="The pod is protected from disruption until the time in the message.",
    ),
    EventReason(
        reason="DoNotDisruptGracePeriodElapsed",
        kinds=("Pod",),
        meaning="The duration of the pod's karpenter.sh/do-not-disrupt annotation has passed; it may be disrupted.",
    ),
    EventReason(
        reason="WaitingOnNodeClaimTermination",
        kinds=_NODE_CLASS,
        meaning="The NodeClass is being deleted and waits until the NodeClaims that use it are removed.",
        what_to_do="Delete or drain the NodeClaims in the message.",
    ),
    EventReason(
        reason="Finalized",
        kinds=(*_NODE, *_NODE_CLASS),
        meaning="The finalizer was removed; the object is deleted.",
    ),
)

_INTERRUPTION: Final = (
    EventReason(
        reason="SpotInterrupted",
        kinds=_NODE,
        type="Warning",
        meaning="The cloud reclaims the Spot instance in two minutes. The node is drained and replaced.",
    ),
    EventReason(
        reason="CapacityReservationInstanceInterrupted",
        kinds=_NODE,
        type="Warning",
        meaning="The cloud reclaims the instance of an interruptible capacity reservation.",
    ),
    EventReason(
        reason="SpotRebalanceRecommendation",
        kinds=_NODE,
        meaning="The Spot instance is at elevated risk of interruption.",
        what_to_do="Set the annotation journeyman.dev/rebalance: replace on the NodePool to replace such nodes within budgets.",
    ),
    EventReason(
        reason="InstanceStopping",
        kinds=_NODE,
        type="Warning",
        meaning="The instance is stopping or stopped. The NodeClaim is deleted.",
    ),
    EventReason(
        reason="InstanceTerminating",
        kinds=_NODE,
        type="Warning",
        meaning="The instance is terminating or terminated. The NodeClaim is deleted.",
        what_to_do="Find out who terminated the instance, if it was not the cloud.",
    ),
    EventReason(
        reason="InstanceUnhealthy",
        kinds=_NODE,
        type="Warning",
        meaning="The cloud reports a failed status check or scheduled maintenance. The NodeClaim is deleted.",
    ),
    EventReason(
        reason="TerminatingOnInterruption",
        kinds=_NODE,
        type="Warning",
        meaning="The NodeClaim is deleted because of an interruption.",
    ),
)

_DISRUPTION: Final = (
    EventReason(
        reason="DisruptionPaused",
        kinds=("NodePool",),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=15),
        meaning="The circuit breaker keeps the NodePool's nodes: the annotation journeyman.dev/pause-disruption, an alarm, or "
        "replacements that did not join. Commands that have started are finished; interruption and repair go on.",
        what_to_do="Remove the annotation, resolve the alarm, or find out why the NodeClaims of the named NodeDisruption did not "
        "join; replacements are tried again by themselves.",
    ),
    EventReason(
        reason="DisruptionBlocked",
        kinds=(*_NODE, "NodePool"),
        meaning="The node may not be disrupted at the moment, or the NodePool's budgets allow no disruption.",
        what_to_do="Nothing, if it is intended; the message names the pod, PodDisruptionBudget, annotation or budget.",
    ),
    EventReason(
        reason="Hibernating",
        kinds=("NodePool",),
        is_karpenters=False,
        dedupe_window=timedelta(minutes=15),
        meaning="A window of the annotation journeyman.dev/hibernate is open: the NodePool's nodes are removed within its budgets, and it launches none.",
    ),
    EventReason(
        reason="Unconsolidatable",
        kinds=_NODE,
        dedupe_window=timedelta(minutes=15),
        meaning="Consolidation can neither delete the node nor replace it by a cheaper one; the message says why.",
    ),
    EventReason(
        reason="ConsolidationCandidate",
        kinds=_NODE,
        meaning="A consolidation of the node is proposed, with its savings; it is validated 15 s later.",
    ),
    EventReason(
        reason="ConsolidationApproved",
        kinds=(*_NODE, "NodePool"),
        meaning="The policy Balanced approves a consolidation of the node, or of several nodes of the NodePool; the message has the score.",
    ),
    EventReason(
        reason="ConsolidationRejected",
        kinds=_NODE,
        meaning="The proposed consolidation failed validation: churn, budget or scheduling.",
    ),
    EventReason(
        reason="ConsolidationReversed",
        kinds=("NodeClaim",),
        is_karpenters=False,
        meaning="The NodeClaim was launched for pods that consolidation had moved shortly before. Consolidation leaves their "
        "workloads alone for a while, longer each time.",
        what_to_do="Nothing. If it repeats, cap the evictions of the workload (`journeyman.dev/max-evictions-per-day`), or raise "
        "consolidateAfter.",
    ),
    EventReason(
        reason="DisruptionLaunching",
        kinds=("NodeClaim",),
        meaning="The NodeClaim is a replacement and is launched.",
    ),
    EventReason(
        reason="DisruptionWaitingReadiness",
        kinds=("NodeClaim",),
        meaning="Disruption waits until the replacement is initialized.",
    ),
    EventReason(
        reason="DisruptionTerminating",
        kinds=_NODE,
        meaning="The node is deleted for the reason in the message: consolidation, expiration, node repair or rebalance.",
    ),
)

_OPERATION: Final = (
    EventReason(
        reason="ObjectSkipped",
        kinds=(
            *("Pod", "DaemonSet", "Node", "NodeClaim", "NodePool", *_NODE_CLASS),
            *("NodeOverlay", "CapacityBuffer", "NodeDisruption", "FleetPlan"),
        ),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=15),
        meaning="The object does not validate, or cannot be evaluated. It is skipped; all other objects are handled.",
        what_to_do="Correct the value in the message. If the message names an exception, report it as a bug.",
    ),
    EventReason(
        reason="RemovalsHeld",
        kinds=("Namespace",),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=30),
        meaning="More instances, Nodes and NodeClaims look lost than the larger of 2 and 10 % of the fleet within an hour. They are "
        "kept; `kubectl get fleetguard cluster -o yaml` lists them.",
        what_to_do="Check whether NodeClaims were wiped, the API server was restored from a backup, or the cluster's register entry or "
        "cloud account is wrong. Create again what is missing; delete what is not needed yourself.",
    ),
    EventReason(
        reason="ForeignInstances",
        kinds=("Namespace",),
        type="Warning",
        is_karpenters=False,
        dedupe_window=timedelta(minutes=30),
        meaning="Instances have this cluster's name in their tags, but the UID of another cluster: another cluster has or had this name. "
        "They are neither counted nor terminated.",
        what_to_do="Correct the register entry if it names the wrong cluster. Terminate the instances yourself if their cluster is gone.",
    ),
    EventReason(
        reason="NodeClaimAdopted",
        kinds=_NODE,
        type="Warning",
        is_karpenters=False,
        meaning="The NodeClaim of the instance did not exist any more. It was created again, and pods run on.",
        what_to_do="Find out who removed the NodeClaim. Delete it, and not its finalizer, if the node is to go.",
    ),
    EventReason(
        reason="PermissionDenied",
        kinds=("Namespace",),
        type="Warning",
        is_karpenters=False,
        meaning="The API server forbids a request that a step needs. The step is tried again every minute.",
        what_to_do="Grant the permission in the message: upgrade the chart, or check its `access` and `features` values.",
    ),
    EventReason(
        reason="CRDNotInstalled",
        kinds=("Namespace",),
        type="Warning",
        is_karpenters=False,
        meaning="The API server does not know a kind that a step needs.",
        what_to_do="Install the chart's custom resource definitions, or disable the feature that needs the kind.",
    ),
)

EVENT_REASONS: Final[Mapping[str, EventReason]] = {
    entry.reason: entry
    for entry in (*_SCHEDULING, *_LIFECYCLE, *_TERMINATION, *_INTERRUPTION, *_DISRUPTION, *_OPERATION)
}
"""Every Event reason, by subject: scheduling, lifecycle, termination, interruption, disruption, operation."""
