"""Builders for tests of the churn ledger: commands, NodeClaims and candidates of Deployments, and the ledger as it is stored."""

from __future__ import annotations

from datetime import datetime, timedelta

from journeyman.core.api import labels
from journeyman.core.api.churn_ledger import LEDGER_NAME, ChurnLedger, EvictedWorkload
from journeyman.core.api.model import parse
from journeyman.core.api.node_disruption import (
    DisruptionCandidate,
    DisruptionReplacement,
    NodeDisruption,
    NodeDisruptionSpec,
    NodeDisruptionStatus,
)
from journeyman.core.api.objects import ObjectMeta
from journeyman.core.disruption.candidates import Candidate, NodeClaimName, NodePoolName
from journeyman.core.disruption.churn_counts import record_churn
from journeyman.core.disruption.commands import replacement_name
from journeyman.core.plan import CreateObject, PatchObject
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state import Snapshot
from journeyman.core.state.pod_workload import MovedWorkload, WorkloadKey
from tests.helpers import builders
from tests.helpers.builders import NOW, ago, stamp

HALF_A_MINUTE_AGO = ago(seconds=30)
WINDOW = timedelta(minutes=10)


def deployment(name: str) -> WorkloadKey:
    """Return the key of a Deployment in `default`."""
    return WorkloadKey("Deployment", "default", name)


def pod_of(name: str, suffix: str = "x", *, created: datetime | None = None, node: str = "", limit: str = ""):
    """Return a pod of a Deployment `name`."""
    owner = {
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-7c", "uid": f"uid-{name}", "controller": True
    }  # fmt: skip
    metadata = {
        "labels": {"pod-template-hash": "7c"},
        "ownerReferences": [owner],
        "annotations": {labels.MAX_EVICTIONS_PER_DAY: limit} if limit else {},
        **({"creationTimestamp": stamp(created)} if created is not None else {}),
    }
    return builders.a_pod(f"{name}-7c-{suffix}", node=node, metadata=metadata)


def a_command(
    name: str,
    *,
    moved: dict[str, int] | None = None,
    ended: datetime | None = NOW,
    phase: str = "Succeeded",
    reason="Underutilized",
    pool: str = "default",
    proposed: datetime | None = None,
    started: bool = True,
    **more,
):
    """Return a command that moved one pod of the Deployment `api` and one of `web`, or `moved`, and took two minutes."""
    pods = moved if moved is not None else {"api": 1, "web": 1}
    keys = tuple(f"default/{workload}-7c-{n}" for workload, number in pods.items() for n in range(number))
    fields = {
        "reason": reason,
        "decision": "replace",
        "method": "single-node",
        "candidates": (DisruptionCandidate(node_claim="old", node_claim_uid="u", node_pool=pool, pods=keys),),
        "replacements": (DisruptionReplacement(name=replacement_name(name, pool, 0)),),
        "workloads": tuple(EvictedWorkload(**deployment(w)._asdict(), pods=n) for w, n in pods.items()),
        "created_at": proposed,
    }
    spec = NodeDisruptionSpec(**{**fields, **more})
    start = (ended or NOW) - timedelta(minutes=2)
    status = NodeDisruptionStatus(phase=phase, started_at=start if started else None, finished_at=ended)
    return NodeDisruption(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}", resource_version="7"), spec=spec, status=status
    )


def a_proposal(name: str, at: datetime = NOW, **changes):
    """Return a command that was proposed and has not started."""
    return a_command(name, ended=None, phase="Proposed", started=False, proposed=at, **changes)


def a_created_claim(*pods: str, name: str = "new", at: datetime = HALF_A_MINUTE_AGO, replaces: str = ""):
    """Return a NodeClaim that was created for these pods of `default`, or as the replacement of a command."""
    annotations = {
        labels.PLANNED_PODS: ",".join(f"default/{pod}" for pod in pods),
        **({labels.DISRUPTION: replaces} if replaces else {}),
    }
    return builders.a_claim(name, metadata={"annotations": annotations, "creationTimestamp": stamp(at)})


def a_planned_claim(pool: str = "default", price: float = 0.0):
    """Return a replacement by a node of this NodePool."""
    return PlannedClaim(
        node_pool=pool, pods=(), instance_types=("s",), requirements=(), requests={},
        offering=("s", "a", labels.ON_DEMAND), price=price,
    )  # fmt: skip


def a_candidate(
    *workloads: str, limit: int | None = None, pods: int = 1, claim: str = "n", price: float = 1.0, pool="default"
):
    """Return a node with pods of these Deployments."""
    return Candidate(
        nodeclaim=NodeClaimName(claim), nodeclaim_uid="u", node=f"node-{claim}", node_uid="v",
        nodepool=NodePoolName(pool), instance_type="m", zone="a", capacity_type=labels.ON_DEMAND, price=price,
        reschedulable_pods=tuple(f"default/{w}-7c-{n}" for w in workloads for n in range(pods)),
        workloads=tuple(MovedWorkload(key=deployment(w), pods=pods, limit=limit) for w in workloads),
    )  # fmt: skip


def stored_ledger(snapshot: Snapshot, *, version: str = "1", window: timedelta = WINDOW) -> ChurnLedger | None:
    """Return the ledger after the plan of this snapshot, as an API server has it then."""
    ledger, uid = snapshot.churn_ledger, "uid-ledger"
    for action in record_churn(snapshot, window).actions:
        raw = {"metadata": {"name": LEDGER_NAME, "uid": uid, "resourceVersion": version}}
        if isinstance(action, CreateObject) and ledger is None:
            ledger = parse(ChurnLedger, raw)
        if isinstance(action, PatchObject):
            ledger = parse(ChurnLedger, {**raw, "status": action.patch["status"]})
    return ledger


def an_empty_ledger() -> ChurnLedger:
    """Return a ledger that was created and not written yet."""
    return ChurnLedger(metadata=ObjectMeta(name=LEDGER_NAME, uid="uid-ledger", resource_version="1"))
