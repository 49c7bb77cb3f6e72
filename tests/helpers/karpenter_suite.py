"""What Karpenter's own suites schedule on: its fake cloud's instance types, in short, and where each pod is scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, Pod
from journeyman.core.api.resources import to_resources
from journeyman.core.catalogue import Catalogue, InstanceType, Offering, label_requirements
from journeyman.core.lifecycle.provisioning import create_nodeclaims
from journeyman.core.scheduling.results import Options, PlannedClaim, Results
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.state import Snapshot
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import NOW, a_pod, a_pool, a_snapshot, merge

SIZE = "karpenter.k8s.aws/instance-size"
INTEGER = "karpenter.k8s.aws/instance-cpu"
OPTIONAL = "karpenter.k8s.aws/instance-gpu-name"
GPU_A, GPU_B = "fake.com/vendor-a", "fake.com/vendor-b"
ZONES = ("test-zone-1", "test-zone-2", "test-zone-3")
ANYWHERE = tuple((zone, labels.ON_DEMAND) for zone in ZONES) + tuple((zone, labels.SPOT) for zone in ZONES[:2])


def fake_type(
    name: str,
    *,
    cpu: int = 4,
    memory: str = "4Gi",
    pods: int = 5,
    arch: str = "amd64",
    os: tuple[str, ...] = ("linux", "windows", "darwin"),
    offerings: tuple[tuple[str, str], ...] = ANYWHERE,
    price: float | None = None,
    spot: float | None = None,
    **extended: int,
) -> InstanceType:
    """Return one type of Karpenter's fake cloud; its price is by its resources unless stated.

    Args:
        name: Its name.
        cpu: Its CPUs.
        memory: Its memory.
        pods: How many pods it runs.
        arch: Its architecture.
        os: The operating systems that it may run.
        offerings: Zone and capacity type of each offering.
        price: Its hourly price.
        spot: Its hourly price as Spot, if that differs.
        extended: Extended resources, by `a` or `b` for the two vendors of GPUs.

    Restates: karpenter pkg/cloudprovider/fake/instancetype.go `NewInstanceType`.
    """
    amount = to_resources({"memory": memory}, round_up=False)["memory"]
    gpus = {{"a": GPU_A, "b": GPU_B}[key]: count for key, count in extended.items()}
    hourly = price if price is not None else 0.1 * cpu + 0.1 * amount / 1e9 + sum(gpus.values())
    large = cpu > 4 and amount > 8 * 2**30
    values = {
        labels.INSTANCE_TYPE: (name,),
        labels.ARCH: (arch,),
        labels.OS: os,
        labels.ZONE: tuple(sorted({zone for zone, _ in offerings})),
        labels.CAPACITY_TYPE: tuple(sorted({capacity for _, capacity in offerings})),
        SIZE: ("large" if large else "small",),
        INTEGER: (str(cpu),),
        **({OPTIONAL: ("optional",)} if large else {}),
    }
    requirements = [NodeSelectorRequirement(key=k, operator="In", values=v) for k, v in values.items()]
    if not large:
        requirements.append(NodeSelectorRequirement(key=OPTIONAL, operator="DoesNotExist"))
    return InstanceType(
        name=name,
        requirements=tuple(requirements),
        offerings=tuple(
            Offering(
                zone=zone,
                capacity_type=capacity,
                price=spot if spot is not None and capacity == labels.SPOT else hourly,
                requirements=label_requirements(zone=zone, capacity_type=capacity),
            )
            for zone, capacity in offerings
        ),
        capacity={"cpu": cpu * 1000, "memory": amount, "pods": pods, **gpus},
        overhead={"cpu": 100, "memory": 10 * 2**20},
    )


FAKE_TYPES = (
    fake_type("arm-instance-type", cpu=16, memory="128Gi", arch="arm64", os=("ios", "linux", "windows", "darwin")),
    fake_type("default-instance-type"),
    fake_type("gpu-vendor-b-instance-type", b=2),
    fake_type("gpu-vendor-instance-type", a=2),
    fake_type("single-pod-instance-type", pods=1),
    fake_type("small-instance-type", cpu=2, memory="2Gi"),
)
"""Restates: karpenter pkg/cloudprovider/fake/cloudprovider.go `GetInstanceTypes`."""


class Scheduled(NamedTuple):
    """A verified plan, and the snapshot that it is for."""

    results: Results
    snapshot: Snapshot

    def manifest_of(self, name: str) -> dict[str, Any]:
        """Return the NodeClaim that is created for a pod, as JSON."""
        claim = self.node_of(name)
        (chain,) = create_nodeclaims(self.snapshot, [c for c in self.results.new_claims if c is claim], NOW).chains
        body: dict[str, Any] = chain.actions[0].body
        return body

    def node_of(self, name: str) -> PlannedClaim | str | None:
        """Return the new NodeClaim of a pod in the namespace default, or its existing node's name; None without a place."""
        key = f"default/{name}"
        for claim in self.results.new_claims:
            if key in claim.pods:
                return claim
        return next((node for node, keys in self.results.existing.items() if key in keys), None)

    def label_of(self, name: str, key: str) -> str:
        """Return the label that a pod's new node has, or may have if it is the first of several values."""
        claim = self.node_of(name)
        assert isinstance(claim, PlannedClaim), f"Pod {name}: {self.results.pod_errors.get(f'default/{name}')}"
        if key == labels.INSTANCE_TYPE:
            return claim.offering.instance_type
        if key == labels.ZONE:
            return claim.offering.zone
        if key == labels.CAPACITY_TYPE:
            return claim.offering.capacity_type
        return next(r.values[0] for r in claim.requirements if r.key == key and r.values)

    def by_label(self, key: str) -> list[int]:
        """Return how many pods are scheduled on new nodes of each value of a label, sorted."""
        counts: dict[str, int] = {}
        for claim in self.results.new_claims:
            value = self.label_of(claim.pods[0].partition("/")[2], key) if claim.pods else ""
            counts[value] = counts.get(value, 0) + len(claim.pods)
        return sorted(counts.values())


def schedule(
    *pods: Pod,
    types: tuple[InstanceType, ...] = FAKE_TYPES,
    by_pool: Mapping[str, tuple[InstanceType, ...]] | None = None,
    options: Options = Options(),  # noqa: B008 - a frozen value
    **cluster: Any,
) -> Scheduled:
    """Return the plan for these pods and the other objects of the cluster, which `verify` accepts.

    Args:
        pods: Pods, also running ones.
        types: The instance types of every NodePool.
        by_pool: Those of each NodePool, if they differ.
        options: The options of the pass.
        cluster: The other fields of the snapshot.
    """
    snapshot = a_snapshot(pods=tuple(sorted(pods, key=lambda pod: pod.key)), **cluster)
    same = dict.fromkeys(
        (each.metadata.name for each in snapshot.node_pools), tuple(sorted(types, key=lambda t: t.name))
    )
    catalogue = Catalogue(same if by_pool is None else by_pool)
    results = solve(snapshot, catalogue, options=options)
    ignored = options.ignore_dra_requests
    assert (
        verify_strictly(snapshot, catalogue, results, pods=pods_to_schedule(snapshot), ignore_dra_requests=ignored)
        == ()
    )
    return Scheduled(results, snapshot)


def pool(name: str = "default", **template: Any) -> Any:
    """Return a NodePool; `labels` and `annotations` go into its template's metadata, `limits`, `weight` and `replicas` into
    its spec, all else into its template's spec.
    """
    metadata = {key: template.pop(key) for key in ("labels", "annotations") if key in template}
    spec = {key: template.pop(key) for key in ("limits", "weight", "replicas") if key in template}
    return a_pool(name, spec={**spec, "template": {"metadata": metadata, "spec": template}})


def both(*specs: dict[str, Any]) -> dict[str, Any]:
    """Return the merged specs."""
    merged: dict[str, Any] = {}
    for spec in specs:
        merged = merge(merged, spec)
    return merged


def selecting(**selector: str) -> dict[str, Any]:
    """Return the spec of a pod with this node selector."""
    return {"nodeSelector": selector}


def requirement(key: str, operator: str, *values: str, **more: Any) -> dict[str, Any]:
    """Return a requirement as JSON."""
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {}), **more}


def required(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a pod's spec with required node affinity: one of these terms."""
    found = {"nodeSelectorTerms": [{"matchExpressions": list(term)} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": found}}}


def preferred(*terms: tuple[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return a pod's spec with preferred node affinity: weights and expressions."""
    found = [{"weight": weight, "preference": {"matchExpressions": list(term)}} for weight, term in terms]
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": found}}}


def requesting(*containers: dict[str, str], init: tuple[dict[str, str], ...] = (), **limits: str) -> dict[str, Any]:
    """Return a pod's spec with a container for each of these requests, and init containers; `sidecar` marks one."""

    def made(number: int, requests: dict[str, str]) -> dict[str, Any]:
        policy = {"restartPolicy": "Always"} if "sidecar" in requests else {}
        amounts = {name: amount for name, amount in requests.items() if name != "sidecar"}
        return {"name": f"c{number}", "image": "pause", "resources": {"requests": amounts, "limits": limits}, **policy}

    return {
        "containers": [made(number, each) for number, each in enumerate(containers)],
        "initContainers": [made(number + len(containers), each) for number, each in enumerate(init)],
    }


def tiny(name: str, **changes: Any) -> Pod:
    """Return a pod that requests nothing, as most of Karpenter's test pods."""
    spec = merge({"containers": [{"name": "c", "image": "pause"}]}, changes.pop("spec", {}))
    return a_pod(name, spec=spec, **changes)
