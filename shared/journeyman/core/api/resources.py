"""Resource amounts as exact integers: requests of pods, capacity of nodes.

`cpu` is in millicores, everything else in whole units (bytes, counts). Requests are rounded up, capacity is
rounded down, so that pods which fit these amounts fit the node.

Quantities are exact, whatever their size; amounts are exact below `MAX_AMOUNT`, which stands for itself and everything above.
It is 2⁶⁰: 1 EiB, or 10¹⁵ CPUs, far more than all nodes of a cluster have. Sums are exact up to the same bound, so they never exceed
it, however many addends there are, and seven such sums can be added or subtracted as 64-bit integers of numpy without wrapping
round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from journeyman.core.api import quantity
from journeyman.core.api.objects import Container, Pod, QuantityText, ResourceTexts, condition_of
from journeyman.core.api.quantity import Format
from journeyman.errors import InvalidQuantityError

Resources = Mapping[str, int]

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"
NODES: Final = "nodes"
"""In NodePool limits only: the number of nodes."""

MAX_AMOUNT: Final = 1 << 60
"""This much or more; as a limit of a NodePool, no limit."""

MAX_REQUEST: Final = 1 << 48
"""The largest request that a node could meet (256 TiB of memory); sums over all pods of a pass stay exact."""

_HUGEPAGES: Final = "hugepages-"


def to_resources(texts: Mapping[str, QuantityText], *, round_up: bool) -> dict[str, int]:
    """Return a resource list as exact amounts.

    Args:
        texts: Quantities by resource name.
        round_up: True for requests and overhead, False for capacity, allocatable and limits.

    Raises:
        InvalidQuantityError: A quantity does not parse or is negative; the message names the resource.
    """
    return {name: amount(name, text, round_up=round_up) for name, text in texts.items()}


def amount(name: str, value: QuantityText, *, round_up: bool) -> int:
    """Return one quantity in the unit of its resource, at most `MAX_AMOUNT`. Raises InvalidQuantityError with the resource."""
    return _amount(name, value if isinstance(value, str) else str(quantity.parse(value)), round_up)


@lru_cache(maxsize=32768)
def _amount(name: str, text: str, round_up: bool) -> int:
    try:
        parsed = quantity.parse(text)
    except InvalidQuantityError as error:
        raise InvalidQuantityError(f"{name}: {error.message}", resource=name, quantity=text) from error
    if parsed.nano < 0:
        raise InvalidQuantityError(f"{name}: {text!r} is negative; give zero or more", resource=name, quantity=text)
    exact = parsed.milli(round_up=round_up) if name == CPU else parsed.units(round_up=round_up)
    return min(exact, MAX_AMOUNT)


def format_resources(resources: Resources) -> dict[str, str]:
    """Return the amounts as canonical quantities, sorted by resource name.

    Memory, ephemeral storage and huge pages are written in binary notation, as kubelets write them.
    """
    return {name: format_amount(name, resources[name]) for name in sorted(resources)}


def is_huge_pages(name: str) -> bool:
    """Whether the resource is huge pages of some size, which are counted in bytes."""
    return name.startswith(_HUGEPAGES)


def format_amount(name: str, value: int) -> str:
    """Return one amount as a canonical quantity."""
    if name == CPU:
        return str(quantity.from_milli(value))
    binary = name in (MEMORY, EPHEMERAL_STORAGE) or is_huge_pages(name)
    return str(quantity.from_units(value, Format.BINARY_SI)) if binary else str(value)


def add(*lists: Resources) -> dict[str, int]:
    """Return the sums over all names, each at most `MAX_AMOUNT`."""
    total: dict[str, int] = {}
    for resources in lists:
        for name, value in resources.items():
            total[name] = min(total.get(name, 0) + value, MAX_AMOUNT)
    return total


def subtract(minuend: Resources, subtrahend: Resources) -> dict[str, int]:
    """Return the differences, which may be negative; names that are missing in the minuend count as zero."""
    left = dict(minuend)
    for name, value in subtrahend.items():
        left[name] = left.get(name, 0) - value
    return left


def maximum(*lists: Resources) -> dict[str, int]:
    """Return the largest amount of each name."""
    largest: dict[str, int] = {}
    for resources in lists:
        for name, value in resources.items():
            largest[name] = max(largest.get(name, value), value)
    return largest


def fits(requests: Resources, available: Resources) -> bool:
    """Whether every request is at most the available amount; a missing resource fits requests of zero only.

    Restates: karpenter pkg/utils/resources/resources.go `Fits`.
    """
    if any(value < 0 for value in available.values()):
        return False
    return all(value <= available.get(name, 0) for name, value in requests.items())


def absurd_request(requests: Resources) -> str:
    """Return the error for a pod whose request exceeds any node; empty if there is none."""
    name = next((name for name in sorted(requests) if requests[name] > MAX_REQUEST), "")
    return f"asks for more {name} than any node can have" if name else ""


def total_requests(pods: Iterable[Pod]) -> dict[str, int]:
    """Return the sum of `pod_requests`; `pods` is their number."""
    return add({PODS: 0}, *map(pod_requests, pods))


class HeldResources(NamedTuple):
    """What a container or pod has now (`actual`), and what the kubelet has allocated to it (`allocated`)."""

    actual: ResourceTexts
    allocated: ResourceTexts


class Resize(NamedTuple):
    """Where a pod's status reports other resources than its spec requests: by container, and at the pod level.

    `infeasible`: the kubelet has refused the requests of the spec for good.
    """

    infeasible: bool
    containers: dict[str, HeldResources]
    pod_level: HeldResources | None


def resize_of(pod: Pod) -> Resize | None:
    """Return the resize of a running pod that the kubelet has not completed; None for all other pods.

    Pods with equal specs request the same only if this is equal, too. An init container has a part in it if it is a sidecar.
    """
    spec, status = pod.spec, pod.status
    if not status.container_statuses and not status.init_container_statuses and status.resources is None:
        return None
    reported = {found.name: found for found in (*status.container_statuses, *status.init_container_statuses)}
    containers = {}
    for container in (*spec.containers, *filter(_is_sidecar, spec.init_containers)):
        found = reported.get(container.name)
        if found is not None and found.resources is not None:
            held = HeldResources(found.resources.requests, found.allocated_resources)
            if _differs(held, container.resources.requests):
                containers[container.name] = held
    pod_level = None
    if spec.resources is not None and status.resources is not None:
        held = HeldResources(status.resources.requests, status.allocated_resources)
        pod_level = held if _differs(held, spec.resources.requests) else None
    if not containers and pod_level is None:
        return None
    pending = condition_of(status.conditions, "PodResizePending")
    return Resize(pending is not None and pending.reason == "Infeasible", containers, pod_level)


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def _differs(held: HeldResources, requests: ResourceTexts) -> bool:
    return held.actual != requests or bool(held.allocated and held.allocated != requests)


def pod_requests(pod: Pod) -> dict[str, int]:
    """Return the requests of one pod, `pods: 1` included.

    The larger of the sum of containers and sidecars, and of each init container with the sidecars before it; pod-level
    amounts replace that; overhead is added. A missing container request defaults to the limit, as on the API server, so
    that templates and hand-written pods count the same as stored ones.

    During an in-place resize, a container, sidecar or pod level counts with the largest of what it requests, has and was
    allocated; after an infeasible one, without what it requests. A pod that moves counts the same: whether its workload
    creates the next pod from the template or, as VPA has it, with the new requests, no field says.

    Raises:
        InvalidQuantityError: A quantity does not parse; the message names pod and resource.

    Restates: k8s.io/component-helpers resource/helpers.go `PodRequests` with UseStatusResources, as karpenter
    pkg/utils/resources/resources.go `Ceiling` calls it; kubernetes pkg/apis/core/v1/defaults.go `SetDefaults_Pod`,
    `defaultPodRequests`.
    Differs: Karpenter ignores resizes of the pod level; kube-scheduler 1.36 counts them.
    """
    spec, resize = pod.spec, resize_of(pod)
    try:
        requests = _containers_requests(spec.containers, spec.init_containers, resize)
        if spec.resources is not None:
            requests.update(_pod_level_requests(pod, requests, resize))
        if spec.overhead:
            requests = add(requests, to_resources(spec.overhead, round_up=True))
    except InvalidQuantityError as error:
        raise InvalidQuantityError(f"Pod {pod.key}: {error.message}", pod=pod.key, **error.context) from error
    requests[PODS] = 1
    return requests


def _containers_requests(
    containers: tuple[Container, ...], init_containers: tuple[Container, ...], resize: Resize | None
) -> dict[str, int]:
    if len(containers) == 1 and not init_containers:
        return _container_requests(containers[0], resize)
    running = add(*(_container_requests(container, resize) for container in containers))
    if not init_containers:
        return running
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in init_containers:
        needed = add(_container_requests(container, resize), sidecars)
        starting = maximum(starting, needed)
        if _is_sidecar(container):
            sidecars = needed
    return maximum(add(running, sidecars), starting)


def _container_requests(container: Container, resize: Resize | None) -> dict[str, int]:
    resources = container.resources
    texts = {**resources.limits, **resources.requests} if resources.limits else resources.requests
    requests = to_resources(texts, round_up=True)
    held = resize.containers.get(container.name) if resize is not None else None
    return requests if resize is None or held is None else _resized(requests, held, infeasible=resize.infeasible)


def _resized(requests: dict[str, int], held: HeldResources, *, infeasible: bool) -> dict[str, int]:
    reported = [_reported(held.actual), _reported(held.allocated)]
    return maximum(*reported) if infeasible else maximum(requests, *reported)


def _reported(texts: ResourceTexts) -> dict[str, int]:
    """Return the amounts of a status without negative ones, which the API server admits there."""
    return {
        name: amount(name, text, round_up=True)
        for name, text in texts.items()
        if not str(text).lstrip().startswith("-")
    }


def _pod_level_requests(pod: Pod, of_containers: Resources, resize: Resize | None) -> dict[str, int]:
    """Return the pod-level requests, with the pod-level limits as defaults where no container has a request."""
    declared = pod.spec.resources
    if declared is None:
        return {}
    requests = {name: text for name, text in declared.requests.items() if _is_pod_level(name)}
    defaults = {
        name: text
        for name, text in declared.limits.items()
        if _is_pod_level(name)
        and name not in requests
        # huge pages cannot be overcommitted: their request is the limit
        and (is_huge_pages(name) or name not in of_containers)
    }
    amounts = to_resources({**requests, **defaults}, round_up=True)
    if resize is None or resize.pod_level is None:
        return amounts
    resized = _resized(amounts, resize.pod_level, infeasible=resize.infeasible)
    return {name: resized.get(name, 0) for name in amounts}


def _is_pod_level(name: str) -> bool:
    return name in (CPU, MEMORY) or is_huge_pages(name)
