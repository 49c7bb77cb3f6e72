"""Resource amounts as metrics say them, and what pods are limited to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from journeyman.core.api.objects import Container, Pod
from journeyman.core.api.resources import CPU, PODS, Resources, add, maximum, to_resources
from journeyman.core.plan import Observation


def gauge(name: str, value: float, labels: Mapping[str, str]) -> Observation:
    """A gauge; labels without a value are left out, which Prometheus takes for the same."""
    return Observation(name=name, value=value, labels={k: v for k, v in labels.items() if v}, kind="gauge")


def by_resource(name: str, resources: Resources, labels: Mapping[str, str]) -> Iterator[Observation]:
    """One gauge for each resource: cpu in cores, memory in bytes, everything else in pieces.

    Restates: karpenter pkg/controllers/metrics/node/controller.go `buildMetrics`.
    """
    for resource in sorted(resources):
        yield gauge(name, in_units(resource, resources[resource]), {**labels, "resource_type": resource_type(resource)})


def in_units(resource: str, amount: int) -> float:
    """An exact amount in the unit that metrics use."""
    return amount / 1000 if resource == CPU else float(amount)


def resource_type(resource: str) -> str:
    """A resource's name as a label value: in snake case."""
    return resource.lower().replace("-", "_")


def total_limits(pods: Iterable[Pod]) -> dict[str, int]:
    """What pods are limited to together, and how many they are.

    Restates: karpenter pkg/utils/resources/resources.go `LimitsForPods`, `Ceiling`.
    """
    each = [_limits_of(pod) for pod in pods]
    return add(*each, {PODS: len(each)})


def _limits_of(pod: Pod) -> dict[str, int]:
    """What runs together, or the most that an init container may take beside the sidecars before it."""
    running = add(*map(_limits, pod.spec.containers))
    starting: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for container in pod.spec.init_containers:
        beside = add(_limits(container), sidecars)
        starting = maximum(starting, beside)
        if container.restart_policy == "Always":
            sidecars = beside
    overhead = to_resources(pod.spec.overhead, round_up=True)
    return add(maximum(add(running, sidecars), starting), overhead)


def _limits(container: Container) -> dict[str, int]:
    return to_resources(container.resources.limits, round_up=True)
