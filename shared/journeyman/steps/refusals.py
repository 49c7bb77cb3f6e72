"""What the API server answers to evictions, and the cloud to endings: counted, and told on the node that they hold up.

=========  =============================================================================================================
200        evicted
404, 409   the pod is gone, or another one has its name: done, and nothing to tell
429        its PodDisruptionBudget does not allow it now: the drain asks again at its own pace
500        more than one PodDisruptionBudget covers it, which the Eviction API refuses for good: the same, until a person
           takes one away
=========  =============================================================================================================

Restates: karpenter pkg/controllers/node/termination/terminator/eviction.go `Reconcile`.
"""

from __future__ import annotations

from typing import Final

from journeyman.core.api.objects import NODECLAIM
from journeyman.core.plan import Event, EvictPod, ObjectRef, Observation, TerminateInstance
from journeyman.errors import ConflictError, JourneymanError, KubeAPIError, NotFoundError, TooManyRequestsError

# kubernetes pkg/registry/core/pod/storage/eviction.go
SEVERAL_BUDGETS: Final = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
)


def eviction_counted(error: JourneymanError | None) -> tuple[Observation, ...]:
    """The sample of one request; none if the API server did not answer at all."""
    code = 200 if error is None else error.status if isinstance(error, KubeAPIError) else 0
    name, labels = "karpenter_pods_eviction_requests_total", {"code": str(code)}
    return (Observation(name=name, labels=labels),) if code else ()


def is_evicted_already(error: JourneymanError) -> bool:
    """Whether the pod that was meant is gone."""
    return isinstance(error, NotFoundError | ConflictError)


def is_held_by_budget(error: JourneymanError) -> bool:
    """Whether PodDisruptionBudgets stand in the way, which is no failure."""
    several = isinstance(error, KubeAPIError) and error.status == 500 and error.message == SEVERAL_BUDGETS
    return several or isinstance(error, TooManyRequestsError)


def held_by_budget(action: EvictPod, error: JourneymanError) -> Event:
    """Which pod, and which rule."""
    pod = f"{action.ref.namespace}/{action.ref.name}"
    several = error.message == SEVERAL_BUDGETS
    what = (
        f"eviction does not support multiple PDBs, as pod {pod} has"
        if several
        else f"evicting pod {pod} violates a PDB"
    )
    text = f"Failed to drain node, {what}: {error.message}"
    return Event(ref=action.node, reason="FailedDraining", message=text, type="Warning")


def not_terminated(action: TerminateInstance, error: JourneymanError) -> Event:
    """What the cloud said, on the node or, if the instance has none, on its claim."""
    claim = ObjectRef(resource=NODECLAIM, name=action.claim, uid=action.claim_uid)
    text = f"Failed to terminate instance {action.provider_id}: {error.message}"
    return Event(ref=action.node or claim, reason="FailedTermination", message=text, type="Warning")
