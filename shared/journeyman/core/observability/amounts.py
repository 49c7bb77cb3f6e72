"""Resource amounts in the units of metrics, and resource limits of pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from journeyman.core.api.objects import Container, Pod
from journeyman.core.api.resources import CPU, PODS, Resources, add, maximum, to_resources
from journeyman.core.plan import Observation
from journeyman.core.state.skipped_objects import SkippedObject, evaluate

T = TypeVar("T")


def gauge(name: str, value: float, labels: Mapping[str, str]) -> Observation:
    """Return a gauge without its empty labels, which Prometheus treats as missing."""
    return Observation(name=name, value=value, labels={k: v for k, v in labels.items() if v}, kind="gauge")


def by_resource(name: str, resources: Resources, labels: Mapping[str, str]) -> Iterator[Observation]:
    """Yield one gauge for each resource: cpu in cores, memory in bytes, others as counts.

    Restates: karpenter pkg/controllers/metrics/node/controller.go `buildMetrics`.
    """
    for resource in sorted(resources):
        yield gauge(name, in_units(resource, resources[resource]), {**labels, "resource_type": resource_type(resource)})


def in_units(resource: str, amount: int) -> float:
    """Return an exact amount in the unit of metrics."""
    return amount / 1000 if resource == CPU else float(amount)


def resource_type(resource: str) -> str:
    """Return a resource's name as a label value, in snake case."""
    return resource.lower().replace("-", "_")


def total_limits(pods: Iterable[Pod]) -> dict[str, int]:
    """Return the sum of the pods' limits; `pods` is their number.

    Restates: karpenter pkg/utils/resources/resources.go `LimitsForPods`, `Ceiling`.
    """
    each = [_limits_of(pod) for pod in pods]
    return add(*each, {PODS: len(each)})


def _limits_of(pod: Pod) -> dict[str, int]:
    """Return the larger of the limits of all containers, and of each init container with the sidecars before it."""
    running = add(*map(_limits, pod.spec.containers))
    starting: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for container in pod.spec.init_containers:
        needed = add(_limits(container), sidecars)
        starting = maximum(starting, needed)
        if container.restart_policy == "Always":
            sidecars = needed
    overhead = to_resources(pod.spec.overhead, round_up=True)
    return add(maximum(add(running, sidecars), starting), overhead)


def _limits(container: Container) -> dict[str, int]:
    return to_resources(container.resources.limits, round_up=True)


def gauges_of_each(
    items: Iterable[T], gauges: Callable[[T], Iterable[Observation]], about: Callable[[T], Any] | None = None
) -> Iterator[Observation]:
    """Yield the gauges of all objects that can be evaluated, and one gauge for each of the others, which names it.

    Args:
        items: The objects.
        gauges: Returns the gauges of one.
        about: Returns the Kubernetes object of an item that is none.
    """
    for item in items:
        found = evaluate(about(item) if about is not None else item, lambda item: tuple(gauges(item)), item)
        if isinstance(found, SkippedObject):
            ref = found.refs[0]
            named = {"kind": ref.resource.kind, "namespace": ref.namespace, "name": ref.name}
            yield gauge("journeyman_scrape_object_skipped", 1, {**named, "error": found.error, "place": found.place})
        else:
            yield from found
