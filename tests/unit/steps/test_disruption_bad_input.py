"""Bad input of disruption: nothing moves without a valid reason, the reason is visible, and other NodePools are consolidated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE_DISRUPTION, NODECLAIM, NODEPOOL, PDB, POD
from tests.helpers.builders import an_instance_type, pool_body
from tests.helpers.simulated_cluster import SimulatedCluster

HEALTHY, BAD = "healthy", "bad"
TYPES = tuple(
    an_instance_type(f"{size}-{pool}", cpu=cpus, memory_gib=4 * cpus, price=0.1 * cpus)
    for pool in (HEALTHY, BAD)
    for size, cpus in (("small", 2), ("large", 8))
)
AT_ONCE = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}


def the_pool(name: str) -> dict[str, Any]:
    """Return a NodePool with types of its own, whose nodes are not consolidated yet."""
    own = {"key": labels.INSTANCE_TYPE, "operator": "In", "values": [f"small-{name}", f"large-{name}"]}
    spec = {"template": {"spec": {"requirements": [own]}}, "disruption": {**AT_ONCE, "consolidateAfter": "Never"}}
    return pool_body(name, spec=spec)


@pytest.fixture
def simulation() -> SimulatedCluster:
    """Return a cluster with a large node in each of two NodePools, whose pod would run on a small one."""
    simulation = SimulatedCluster(TYPES, the_pool(HEALTHY))
    simulation.cluster.add(the_pool(BAD))
    simulation.cluster.settings = replace(simulation.cluster.settings, reversal_window=timedelta())
    for pool in (HEALTHY, BAD):
        simulation.deploy(f"big-{pool}", 1, cpu="6", pool=pool)
        simulation.deploy(f"web-{pool}", 1, cpu="500m", pool=pool)
    simulation.until(lambda: simulation.running() == 4, "all pods")
    assert simulation.nodes() == [f"large-{BAD}", f"large-{HEALTHY}"]
    for pool in (HEALTHY, BAD):
        simulation.scale(f"big-{pool}", 0)
    simulation.run_for(minutes=2)
    return simulation


def edit(simulation: SimulatedCluster, pool: str, *, budgets: Any = None, **annotations: str) -> None:
    """Let the nodes of a NodePool be consolidated, with these budgets and annotations."""
    disruption = {**AT_ONCE, **({"budgets": budgets} if budgets else {})}
    changes = {"metadata": {"annotations": annotations}, "spec": {"disruption": disruption}}
    simulation.server.patch(NODEPOOL, pool, changes)


def claims_of(simulation: SimulatedCluster, pool: str) -> list[Any]:
    return [claim for claim in simulation.claims() if claim.metadata.labels[labels.NODEPOOL] == pool]


def nodes_of(simulation: SimulatedCluster, pool: str) -> list[str]:
    return [name for name in simulation.nodes() if name.endswith(pool)]


def commands_of(simulation: SimulatedCluster, pool: str) -> list[dict[str, Any]]:
    """Return the NodeDisruptions of a NodePool's nodes, in order of creation."""
    own = [d for d in simulation.server.list(NODE_DISRUPTION).items if d["spec"]["candidates"][0]["nodePool"] == pool]
    return sorted(own, key=lambda d: (d["spec"]["createdAt"], d["metadata"]["name"]))


def why_stays(simulation: SimulatedCluster, pool: str) -> tuple[str, str]:
    """Return reason and message of the condition Disruptable of a NodePool's only NodeClaim."""
    [claim] = claims_of(simulation, pool)
    found = [c for c in claim.status.conditions if c.type == "Disruptable" and c.status == "False"]
    return (found[0].reason, found[0].message) if found else ("", "")


def until_the_healthy_pool_is_consolidated(simulation: SimulatedCluster) -> None:
    """Run until the NodePool without a mistake has its small node."""
    edit(simulation, HEALTHY)
    simulation.until(lambda: nodes_of(simulation, HEALTHY) == [f"small-{HEALTHY}"], "the small node", minutes=30)
    simulation.run_for(minutes=3)
    assert "Succeeded" in {d["status"]["phase"] for d in commands_of(simulation, HEALTHY)}


def budgets(*given: dict[str, Any], **annotations: str) -> Callable[[SimulatedCluster], None]:
    return lambda simulation: edit(simulation, BAD, budgets=list(given), **annotations)


def annotated(**annotations: str) -> Callable[[SimulatedCluster], None]:
    return lambda simulation: edit(simulation, BAD, **annotations)


def lose_the_price(simulation: SimulatedCluster) -> None:
    """The node's instance type has no offering with a price any more."""
    known = simulation.cloud.types
    simulation.cloud.types = tuple(replace(t, offerings=()) if t.name == f"large-{BAD}" else t for t in known)
    edit(simulation, BAD)


def protect_the_pod(simulation: SimulatedCluster) -> None:
    """A PodDisruptionBudget allows no eviction of the pod."""
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": f"web-{BAD}"}}}
    body = {"metadata": {"name": "keep", "namespace": "default"}, "spec": spec}
    simulation.server.create(PDB, body, namespace="default")
    edit(simulation, BAD)


def cap_by_word(simulation: SimulatedCluster) -> None:
    """The pod's cap of evictions is no number."""
    annotation = {"metadata": {"annotations": {labels.MAX_EVICTIONS_PER_DAY: "few"}}}
    [pod] = [p for p in simulation.server.list(POD).items if p.metadata.labels["app"] == f"web-{BAD}"]
    simulation.server.patch(POD, pod.metadata.name, annotation, namespace="default")
    edit(simulation, BAD)


class Mistake(NamedTuple):
    """A mistake, the Event that names it, and the reason of the condition Disruptable with a part of its message."""

    make: Callable[[SimulatedCluster], None]
    event: tuple[str, str]
    reason: str
    message: str = ""


NIGHT = {"schedule": "0 20 * * *", "duration": "10h"}
ALL = {"nodes": "100%"}
MISTAKES = {
    "invalid cron": Mistake(
        budgets(ALL, {"nodes": "1", "schedule": "61 25 * * *", "duration": "1h"}),
        ("InvalidSchedule", "61 25 * * *"),
        "Budget",
    ),
    "cron that never fires": Mistake(
        budgets(ALL, {"nodes": "1", "schedule": "0 0 31 2 *", "duration": "1h"}), ("InvalidSchedule", "31 2"), "Budget"
    ),
    "unknown time zone": Mistake(
        budgets(ALL, {"nodes": "1", **NIGHT}, **{labels.TIME_ZONE: "Europe/Berlim"}),
        ("InvalidAnnotation", "Europe/Berlim"),
        "Budget",
    ),
    "budget of 0 %": Mistake(budgets({"nodes": "0%"}), ("DisruptionBlocked", "blocking budget"), "Budget"),
    "contradictory budgets": Mistake(
        budgets(ALL, {"nodes": "0", **NIGHT}), ("DisruptionBlocked", "blocking budget"), "Budget"
    ),
    "hibernation against a budget": Mistake(
        budgets({"nodes": "0", **NIGHT}, **{labels.HIBERNATE: "0 20 * * * / 10h"}),
        ("DisruptionBlocked", "reason Hibernated due to blocking budget"),
        "Budget",
    ),
    "missing price": Mistake(lose_the_price, ("Unconsolidatable", "price"), "Price", "price"),
    "pod that cannot be evicted": Mistake(
        protect_the_pod, ("DisruptionBlocked", "Pdb prevents pod evictions"), "PodDisruptionBudget", "default/keep"
    ),
    "pause by a word": Mistake(
        annotated(**{labels.PAUSE_DISRUPTION: "tomorrow"}), ("InvalidAnnotation", "tomorrow"), "Paused", "tomorrow"
    ),
    "cap of the pod by a word": Mistake(cap_by_word, ("InvalidAnnotation", "few"), "BackOff", "allows 0 evictions"),
    "cap of the NodePool by a word": Mistake(
        annotated(**{labels.MAX_EVICTIONS_PER_DAY: "few"}),
        ("InvalidAnnotation", "few"),
        "BackOff",
        "allows 0 evictions",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_bad_input_keeps_a_node_and_says_why(simulation, mistake):
    """An Event names the mistake, the NodeClaim the reason; the other NodePool is consolidated meanwhile."""
    mistake.make(simulation)
    until_the_healthy_pool_is_consolidated(simulation)

    assert nodes_of(simulation, BAD) == [f"large-{BAD}"]
    assert commands_of(simulation, BAD) == []
    reason, text = mistake.event
    assert any(text in event.message for event in simulation.record.events if event.reason == reason)
    assert why_stays(simulation, BAD)[0] == mistake.reason
    assert mistake.message in why_stays(simulation, BAD)[1]


def test_command_ends_without_its_candidate(simulation):
    """The candidate disappears after the proposal: the command says so, its replacement is not launched."""
    edit(simulation, BAD)
    simulation.until(lambda: bool(commands_of(simulation, BAD)), "the proposal")
    [candidate] = claims_of(simulation, BAD)
    simulation.server.patch(NODECLAIM, candidate.metadata.name, {"metadata": {"finalizers": []}})
    simulation.server.delete(NODECLAIM, candidate.metadata.name)
    until_the_healthy_pool_is_consolidated(simulation)

    first = commands_of(simulation, BAD)[0]
    assert first["status"]["phase"] == "Rejected"
    assert "no longer" in first["status"]["messages"][-1]
    assert simulation.running() == 2


def test_drain_that_cannot_evict_a_pod_says_so_and_stops_nothing(simulation):
    """The PodDisruptionBudget comes after validation: the command waits for it, and the other NodePool is consolidated."""
    edit(simulation, BAD)
    simulation.until(
        lambda: any(d["status"]["phase"] == "Replacing" for d in commands_of(simulation, BAD) if "status" in d),
        "the replacement",
    )
    protect_the_pod(simulation)
    until_the_healthy_pool_is_consolidated(simulation)

    assert commands_of(simulation, BAD)[0]["status"]["phase"] == "Draining"
    assert f"large-{BAD}" in nodes_of(simulation, BAD)
    assert any("violates a PDB" in e.message for e in simulation.record.events if e.reason == "FailedDraining")
