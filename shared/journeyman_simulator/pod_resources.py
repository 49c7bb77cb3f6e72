"""Counts the resources of pods as kube-scheduler and kubelets do. It shares no code with `core.api.resources.pod_requests`.

Restates: k8s.io/component-helpers `resource/helpers.go` `PodRequests`, as kubernetes `pkg/scheduler/framework/types.go`
`CalculateResource` calls it (UseStatusResources, InPlacePodLevelResourcesVerticalScalingEnabled).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from journeyman.core.api.objects import (
    Container,
    ContainerStatus,
    Pod,
    PodStatus,
    ResourceRequirements,
    ResourceTexts,
)
from journeyman.core.api.resources import to_resources

Amounts = dict[str, int]

_POD_LEVEL: Final = ("cpu", "memory", "hugepages-")
_NOTHING: Final = ResourceRequirements()


def scheduled_requests(pod: Pod) -> Amounts:
    """Return what kube-scheduler subtracts from a node for this pod: during a resize the larger amounts, and one pod."""
    reported = {status.name: status for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)}
    is_refused = any(c.type == "PodResizePending" and c.reason == "Infeasible" for c in pod.status.conditions)

    def counted(wanted: ResourceTexts, actual: ResourceRequirements | None, allocated: ResourceTexts) -> Amounts:
        if actual is None:
            return _amounts(wanted)
        return _largest([_amounts(actual.requests), _amounts(allocated), {} if is_refused else _amounts(wanted)])

    def of_container(container: Container) -> Amounts:
        status = reported.get(container.name)
        if status is None or (container in pod.spec.init_containers and container.restart_policy != "Always"):
            return _amounts(container.resources.requests)
        return counted(container.resources.requests, status.resources, status.allocated_resources)

    total = _peak(pod, map(of_container, (*pod.spec.init_containers, *pod.spec.containers)))
    if pod.spec.resources is not None:
        wanted = _pod_level(pod.spec.resources, total)
        effective = counted(wanted, pod.status.resources, pod.status.allocated_resources)
        total |= {name: effective.get(name, 0) for name in wanted}
    return _sum([total, _amounts(pod.spec.overhead), {"pods": 1}])


def allocated_requests(pod: Pod) -> Amounts:
    """Return what the kubelet has allocated to a running pod, and one pod; what it requests before it runs."""
    allocated = {
        status.name: _amounts(status.allocated_resources)
        for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    }
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    total = _peak(pod, (allocated.get(c.name, _amounts(c.resources.requests)) for c in containers))
    if pod.spec.resources is not None:
        total |= _amounts(pod.status.allocated_resources or _pod_level(pod.spec.resources, total))
    return _sum([total, _amounts(pod.spec.overhead), {"pods": 1}])


def wanted_requests(pod: Pod) -> Amounts:
    """Return what the pod's spec requests, and one pod."""
    total = _peak(pod, (_amounts(c.resources.requests) for c in (*pod.spec.init_containers, *pod.spec.containers)))
    if pod.spec.resources is not None:
        total |= _amounts(_pod_level(pod.spec.resources, total))
    return _sum([total, _amounts(pod.spec.overhead), {"pods": 1}])


def is_allocated(pod: Pod) -> bool:
    """Whether the kubelet has allocated what the pod's spec requests."""
    return all(status.allocated_resources == requests for status, requests in _reported_and_requested(pod))


def is_resizing(pod: Pod) -> bool:
    """Whether a running pod has other resources than its spec requests, or a condition that says so."""
    if any(condition.type.startswith("PodResize") for condition in pod.status.conditions):
        return True
    both = _reported_and_requested(pod)
    return any(
        status.allocated_resources != requests or (status.resources or _NOTHING).requests != requests
        for status, requests in both
    )


def reported_status(pod: Pod, *, keep_actual: bool = False) -> dict[str, Any]:
    """Return the parts of the status for a pod whose requests are allocated, and in its containers unless `keep_actual`."""
    found: dict[str, Any] = {}
    spec, status = pod.spec, pod.status
    for field, containers, statuses in (
        ("containerStatuses", spec.containers, status.container_statuses),
        ("initContainerStatuses", spec.init_containers, status.init_container_statuses),
    ):
        before = {status.name: status.resources for status in statuses if keep_actual}
        entries = [{"name": c.name, **_held(c.resources.requests, before.get(c.name))} for c in containers]
        found |= {field: entries} if entries else {}
    if pod.spec.resources is not None:
        found |= _held(pod.spec.resources.requests, pod.status.resources if keep_actual else None)
    return found


def _held(requests: ResourceTexts, actual: ResourceRequirements | None) -> dict[str, Any]:
    return {"allocatedResources": requests, "resources": {"requests": requests if actual is None else actual.requests}}


def _reported_and_requested(pod: Pod) -> Iterator[tuple[ContainerStatus | PodStatus, ResourceTexts]]:
    """Yield what the kubelet reports of containers and the pod level, with what the spec requests there."""
    requests = {c.name: c.resources.requests for c in (*pod.spec.containers, *pod.spec.init_containers)}
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        yield status, requests.get(status.name, {})
    if pod.spec.resources is not None and pod.status.resources is not None:
        yield pod.status, pod.spec.resources.requests


def _peak(pod: Pod, amounts: Iterable[Amounts]) -> Amounts:
    """Return the most that the containers use at once; `amounts` are theirs, of the init containers first."""
    each = list(amounts)
    first = len(pod.spec.init_containers)
    always = [c.restart_policy == "Always" for c in pod.spec.init_containers]
    sidecars = [own for own, stays in zip(each, always, strict=False) if stays]
    while_starting = [
        _sum([each[i], *(own for own, stays in zip(each[:i], always, strict=False) if stays)]) for i in range(first)
    ]
    return _largest([*while_starting, _sum([*each[first:], *sidecars])])


def _pod_level(declared: ResourceRequirements, of_containers: Mapping[str, int]) -> ResourceTexts:
    """Return the requests of the pod level, with its limits as defaults as the API server sets them."""
    defaults = {name: text for name, text in declared.limits.items() if name not in of_containers}
    texts = {**defaults, **declared.requests}
    return {name: text for name, text in texts.items() if name.startswith(_POD_LEVEL)}


def _amounts(texts: ResourceTexts) -> Amounts:
    return to_resources(texts, round_up=True)


def _sum(lists: Iterable[Mapping[str, int]]) -> Amounts:
    total: Amounts = {}
    for amounts in lists:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def _largest(lists: Iterable[Mapping[str, int]]) -> Amounts:
    largest: Amounts = {}
    for amounts in lists:
        for name, amount in amounts.items():
            largest[name] = max(amount, largest.get(name, 0))
    return largest
