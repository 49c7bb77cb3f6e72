"""A small healthy cluster, and what the five steps do in it: the yardstick for the same cluster with hostile objects.

Four nodes of the NodePool `default`, and a pod that needs a fifth one:

============  =================================================================
node-busy     runs a pod that may not be disrupted
node-empty    runs nothing, so consolidate deletes it
node-leaving  its NodeClaim is being deleted, so terminate drains it
node-spot     the cloud announces its interruption
============  =================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE_DISRUPTION, NODECLAIM, NODEPOOL, POD
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import InvariantError
from journeyman.ports import Interruption, RequeueDue, Trigger
from journeyman.runtime.scrape import GROUPS, scrape
from journeyman.steps.consolidate import consolidate
from journeyman.steps.context import FeatureGates, Outcome, RunContext
from journeyman.steps.interrupt import interrupt
from journeyman.steps.provision import provision
from journeyman.steps.sweep import sweep
from journeyman.steps.terminate import terminate
from tests.helpers import fleets
from tests.helpers.builders import CLUSTER, NOW, ago, node_class_body, pod_body, pool_body, provider_id_of
from tests.helpers.fakes import Cluster

ROUNDS = 3
SECONDS_BETWEEN_ROUNDS = 20

STEPS: Mapping[Step, Callable[[RunContext, Trigger], Outcome]] = {
    Step.INTERRUPT: interrupt,
    Step.PROVISION: provision,
    Step.TERMINATE: terminate,
    Step.CONSOLIDATE: consolidate,
    Step.SWEEP: sweep,
}


@dataclass
class Findings:
    """What the steps did.

    `served` by healthy object, the exception of each step that failed, the defects of plans that verification rejected, and
    each step's CPU seconds.
    """

    served: dict[str, bool] = field(default_factory=dict)
    rejected: list[Any] = field(default_factory=list)
    stopped: dict[str, BaseException] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def slowest(self) -> float:
        """Return the CPU seconds of the slowest run of a step."""
        return max(self.seconds.values())


class HealthyCluster:
    """The healthy cluster on the in-memory API server, together with hostile objects.

    Args:
        hostile: Objects as JSON, created after the healthy ones.
    """

    def __init__(self, hostile: Iterable[Mapping[str, Any]] = ()) -> None:
        self.cluster = Cluster()
        gates = FeatureGates(node_overlay=True, capacity_buffer=True, static_capacity=True)
        self.cluster.settings = replace(self.cluster.settings, feature_gates=gates, ignore_dra_requests=False)
        self.cluster.cloud.types = fleets.TYPES
        protected = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}
        members = (
            fleets.a_member("busy", pods=(fleets.a_pod("busy", cpu="3", node="node-busy", **protected),)),
            fleets.a_member("empty"),
            fleets.a_member("leaving", cpus=("1",), deleting=True),
            fleets.a_member("spot", capacity_type=labels.SPOT, cpus=("3",)),
        )
        disruption = {"consolidateAfter": "30s", "budgets": [{"nodes": "100%"}]}
        self.add(
            pool_body(spec={"disruption": disruption}),
            node_class_body(),
            *fleets.bodies(*members),
            pod_body("healthy", cpu="6"),
        )
        for member in members:
            self.run_instance(member.claim.metadata.name, member.claim.metadata.uid)
        self.add(*hostile)

    def add(self, *bodies: Mapping[str, Any]) -> None:
        """Create objects, status included."""
        self.cluster.server.load(bodies)

    def run_instance(self, claim: str, uid: str) -> None:
        """Add the instance of a NodeClaim to the cloud."""
        self.cluster.cloud.run_orphan(provider_id_of(claim), ago(hours=2), claim, uid)

    def change_pool(self, disruption: Mapping[str, Any]) -> None:
        """Change `spec.disruption` of the NodePool `default`."""
        self.cluster.server.patch(NODEPOOL, "default", {"spec": {"disruption": dict(disruption)}})

    def running_pods(self) -> tuple[Any, ...]:
        """Return the pods that are not terminating."""
        return tuple(p for p in self.cluster.server.list(POD).items if p.metadata.deletion_timestamp is None)

    def run(self, *steps: Step, rounds: int = ROUNDS) -> Findings:
        """Run the steps, by default all five and a scrape of the gauges, in several rounds; return what they did."""
        findings = Findings()
        for number in range(rounds):
            for step in steps or STEPS:
                if step is Step.INTERRUPT and number:
                    continue
                self._run(step, f"{step.value} {number}", findings)
            self.cluster.clock.advance(SECONDS_BETWEEN_ROUNDS)
        if not steps:
            self._measure("scrape", findings, lambda: scrape(self.cluster.run(), tuple(GROUPS)))
        findings.served = self.served()
        lines = self.cluster.record.lines
        findings.rejected = [fields for _, _, fields in lines if fields.get("error") == InvariantError.__name__]
        return findings

    def _run(self, step: Step, name: str, findings: Findings) -> None:
        self._measure(name, findings, lambda: STEPS[step](self.cluster.run(), _trigger(step)))

    def _measure(self, name: str, findings: Findings, work: Callable[[], object]) -> None:
        started = time.process_time()
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test names it
            findings.stopped[name] = error
        findings.seconds[name] = time.process_time() - started

    def disrupted(self) -> set[str]:
        """Return the NodeClaims that NodeDisruptions name."""
        specs = [d.get("spec") or {} for d in self.cluster.server.list(NODE_DISRUPTION).items]
        candidates = [c for spec in specs for c in spec.get("candidates") or ()]
        return {c["nodeClaim"] for c in candidates if isinstance(c, dict) and isinstance(c.get("nodeClaim"), str)}

    def served(self) -> dict[str, bool]:
        """Return whether each healthy object got what the steps owe it."""
        server = self.cluster.server
        claims = {c.metadata.name: c for c in server.list(NODECLAIM).items}
        planned = [c for c in claims.values() if "default/healthy" in _planned_pods(c)]
        draining = [p for p in server.list(POD).items if p.metadata.name == "leaving-0"]
        return {
            "the pending pod has a NodeClaim with an instance": any(c.status.provider_id for c in planned),
            "the pod of the leaving node is evicted": all(p.metadata.deletion_timestamp for p in draining),
            "the empty node is disrupted": "empty" in self.disrupted(),
            "the interrupted NodeClaim is deleted": "spot" not in claims
            or claims["spot"].metadata.deletion_timestamp is not None,
            "the busy node stays": "busy" in claims and claims["busy"].metadata.deletion_timestamp is None,
        }


def _planned_pods(claim: Any) -> set[str]:
    planned = claim.metadata.annotations.get(labels.PLANNED_PODS, "").split(",")
    return {entry.partition(":")[0] for entry in planned}


def _trigger(step: Step) -> Trigger:
    if step is Step.INTERRUPT:
        kind = InterruptionKind.SPOT_INTERRUPTED
        return Interruption(id="e", cluster=CLUSTER, reason="test", time=NOW, kind=kind, instance_ids=("i-spot",))
    return RequeueDue(id="t", cluster=CLUSTER, step=step, reason="test", time=NOW)
