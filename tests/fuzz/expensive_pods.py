"""Pods whose constraints take the scheduler very long, all of which an API server admits; each shape in any number and size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

JSONDict = dict[str, Any]
ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")


def pod(name: str, labels: Mapping[str, str], cpu: str = "1", **spec: Any) -> JSONDict:
    """Return a pending pod of a tenant."""
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "tenant", "uid": f"uid-{name}", "labels": dict(labels)},
        "spec": {"containers": [container], **spec},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        },
    }


def own(number: int) -> dict[str, str]:
    """Return labels that no other pod has."""
    return {"app": f"tenant-{number}"}


def _in(key: str, *values: str) -> JSONDict:
    return {"key": key, "operator": "In", "values": list(values)}


def _node_terms(number: int, count: int) -> JSONDict:
    terms = [
        {"matchExpressions": [_in(ZONE, ZONES[n % 3]), {"key": f"tenant/{number}-{n}", "operator": "DoesNotExist"}]}
        for n in range(count)
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _pod_terms(number: int, count: int, key: str, kind: str = "podAntiAffinity") -> JSONDict:
    terms = [
        {"topologyKey": key, "labelSelector": {"matchExpressions": [_in("app", f"other-{number}-{n}", "x")]}}
        for n in range(count)
    ]
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _spreads(number: int, count: int, key: str, when: str = "DoNotSchedule") -> list[JSONDict]:
    return [
        {
            "maxSkew": 1 + n % 2,
            "topologyKey": key,
            "whenUnsatisfiable": when,
            "labelSelector": {"matchExpressions": [_in("app", *own(number).values(), f"other-{n}")]},
        }
        for n in range(count)
    ]


def node_terms(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many required node affinity terms each."""
    return [pod(f"terms-{n}", own(n), affinity=_node_terms(n, size)) for n in range(pods)]


def node_terms_and_spread(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many node affinity terms, and a spread over zones of their own."""
    return [
        pod(
            f"both-{n}",
            own(n),
            affinity=_node_terms(n, size),
            topologySpreadConstraints=_spreads(n, min(size, 30), ZONE),
        )
        for n in range(pods)
    ]


def values(pods: int, size: int) -> list[JSONDict]:
    """Return pods whose node affinity lists so many values."""
    return [
        pod(
            f"values-{n}",
            own(n),
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [_in(ZONE, *ZONES, *(f"zone-{n}-{v}" for v in range(size)))]}
                        ]
                    }
                }
            },
        )
        for n in range(pods)
    ]


def spreads(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many spreads over zones each."""
    return [pod(f"spread-{n}", own(n), topologySpreadConstraints=_spreads(n, size, ZONE)) for n in range(pods)]


def shared_spreads(pods: int, size: int) -> list[JSONDict]:
    """Return distinct pods that all spreads of all of them count."""
    constraints = [
        {
            "maxSkew": 1 + n,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [f"x-{n}"]}]},
        }
        for n in range(size)
    ]
    return [pod(f"shared-{n}", own(n), cpu=f"{1000 + n}m", topologySpreadConstraints=constraints) for n in range(pods)]


def anti_affinities(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many anti-affinity terms over hostnames each."""
    return [pod(f"apart-{n}", own(n), affinity=_pod_terms(n, size, HOSTNAME)) for n in range(pods)]


def own_anti_affinity(pods: int, size: int) -> list[JSONDict]:
    """Return pods, each of which keeps its own kind off its node; `size` of them are of one kind."""
    result = []
    for n in range(pods):
        term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": own(n // size)}}
        rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        result.append(pod(f"own-{n}", own(n // size), cpu="500m", affinity=rule))
    return result


def namespace_selectors(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many anti-affinity terms, each of which selects nearly all namespaces."""
    result = []
    for n in range(pods):
        terms = [
            {
                "topologyKey": (HOSTNAME, ZONE)[k % 2],
                "namespaceSelector": {
                    "matchExpressions": [{"key": "team", "operator": "NotIn", "values": [f"t{k}", f"other-{n}"]}]
                },
                "labelSelector": {"matchLabels": own(n)},
            }
            for k in range(size)
        ]
        rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        result.append(pod(f"namespaces-{n}", own(n), affinity=rule))
    return result


def zone_anti_affinities(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many anti-affinity terms over zones each."""
    return [pod(f"zones-{n}", own(n), affinity=_pod_terms(n, size, ZONE)) for n in range(pods)]


def affinity_chain(pods: int, size: int) -> list[JSONDict]:
    """Return pods each of which must share a node with the one before, and a zone with `size` others."""
    result = []
    for n in range(pods):
        term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": own(max(n - 1, 0))}}
        more = [
            {"topologyKey": ZONE, "labelSelector": {"matchLabels": own((n + k) % pods)}} for k in range(1, size + 1)
        ]
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [term, *more]}
        result.append(pod(f"chain-{n}", own(n), cpu=f"{100 + n}m", affinity={"podAffinity": rule}))
    return result


def preferences(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many preferences each."""
    return [
        pod(f"preferring-{n}", own(n), topologySpreadConstraints=_spreads(n, size, ZONE, "ScheduleAnyway"))
        for n in range(pods)
    ]


def preferred_node_terms(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many required terms and as many preferred ones."""
    result = []
    for n in range(pods):
        affinity = _node_terms(n, size)
        preferred = [
            {"weight": 1 + k % 100, "preference": {"matchExpressions": [_in(ZONE, ZONES[k % 3])]}} for k in range(size)
        ]
        affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
        result.append(pod(f"pref-{n}", own(n), affinity=affinity))
    return result


def impossible_terms(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many required terms that no node meets."""
    return [
        pod(
            f"none-{n}",
            own(n),
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [_in(f"tenant/{n}-{k}", "x"), _in(f"more/{k}", "y")]}
                            for k in range(size)
                        ]
                    }
                }
            },
        )
        for n in range(pods)
    ]


def many_labels(pods: int, size: int) -> list[JSONDict]:
    """Return distinct pods, each with a spread over each of many labels."""
    return [
        pod(
            f"labels-{n}",
            own(n),
            topologySpreadConstraints=[
                {
                    "maxSkew": 1,
                    "topologyKey": key,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": own(n)},
                }
                for key in (
                    ZONE,
                    "node.kubernetes.io/instance-type",
                    "karpenter.sh/capacity-type",
                    "karpenter.k8s.aws/instance-family",
                    "karpenter.k8s.aws/instance-cpu",
                    "karpenter.k8s.aws/instance-memory",
                    "karpenter.k8s.aws/instance-network-bandwidth",
                    "karpenter.k8s.aws/instance-pods",
                    "karpenter.k8s.aws/instance-size",
                )[:size]
            ],
        )
        for n in range(pods)
    ]


def host_ports(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many host ports each."""
    result = []
    for n in range(pods):
        body = pod(f"ports-{n}", own(n))
        body["spec"]["containers"][0]["ports"] = [
            {
                "containerPort": 1 + p,
                "hostPort": 1 + (n * 7 + p) % 65000,
                "protocol": "TCP",
                "hostIP": f"10.0.0.{p % 9}",
            }
            for p in range(size)
        ]
        result.append(body)
    return result


def tolerations(pods: int, size: int) -> list[JSONDict]:
    """Return pods with so many tolerations each."""
    return [
        pod(f"tolerant-{n}", own(n), tolerations=[{"key": f"k-{n}-{t}", "operator": "Exists"} for t in range(size)])
        for n in range(pods)
    ]


SHAPES: Mapping[str, Callable[[int, int], list[JSONDict]]] = {
    function.__name__: function
    for function in (
        node_terms,
        node_terms_and_spread,
        values,
        spreads,
        shared_spreads,
        anti_affinities,
        own_anti_affinity,
        namespace_selectors,
        zone_anti_affinities,
        affinity_chain,
        preferences,
        preferred_node_terms,
        impossible_terms,
        many_labels,
        host_ports,
        tolerations,
    )
}
