"""Invariants of instances: one for each NodeClaim, none without one, drained before termination."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from journeyman.core.api.objects import Node, Pod
from journeyman_simulator.apiserver.server import Write
from journeyman_simulator.faults.fault_scenario import EndsEarly, RestoreBackup
from journeyman_simulator.faults.invariants.checkers import InvariantChecker
from journeyman_simulator.faults.invariants.cluster_queries import (
    FINALIZER,
    UID_TAG,
    can_repeat_launches,
    claim_named,
    claim_of,
    claims,
    comes_from,
    condition_is_true,
    edits_tags,
    end_of,
    has_ended,
    has_operation,
    has_true_condition,
    last_loss,
    nodes,
    pods,
    removes_launches,
    skew,
    staleness,
)
from journeyman_simulator.faults.invariants.consistency_invariants import RemovalCount, pool_exists
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_view import RUN_USER_PREFIX, CloudEvent, CloudInstance, ScenarioView

STUCK_AFTER: Final = timedelta(
    minutes=1
)  # the node of a pod that terminates for longer than its grace period and this time does not respond
LONGEST_WITHOUT_CLAIM: Final = timedelta(minutes=10)


class OneInstancePerNodeClaim(InvariantChecker):
    """A NodeClaim has at most one instance in its lifetime, as long as something names the first.

    That is the instance's own tag, also after it ended, unless users edit tags, or instances end early on a cloud that no longer
    shows them then; or the NodeClaim's status, unless users remove launches from it.

    Where launches have no client token, it is the name of the node, as long as it exists. There a NodeClaim may have further
    instances if a list of instances is stale, or a run is paused before its launch; but such an instance runs no pod, and is
    terminated within ten minutes.
    """

    name = "one instance per NodeClaim"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._launched: dict[str, list[str]] = {}  # provider ids, by the NodeClaim's UID
        self._recorded: dict[str, datetime] = {}  # by provider id: when a NodeClaim last had it
        self._has_tags = not edits_tags(view.scenario)
        self._has_launches = not removes_launches(view.scenario)
        ends_early = has_operation(view.scenario, EndsEarly) or any(
            p.broken == "ends" for p in view.scenario.setup.pools
        )
        self._forgets = ends_early and not CLOUDS[view.scenario.setup.cloud].shows_ended
        self._has_client_token = CLOUDS[view.scenario.setup.cloud].has_client_token
        self._may_repeat = not self._has_client_token and can_repeat_launches(view.scenario)
        self._repeated: set[str] = set()  # UIDs of NodeClaims
        self._further_since: dict[str, datetime] = {}  # by provider id

    def check_write(self, write: Write) -> Iterator[str]:
        """Record the provider ids in the status of NodeClaims."""
        if write.resource.kind == "NodeClaim":
            self._recorded[(write.result.get("status") or {}).get("providerID", "")] = self.view.clock.now()
        yield from ()

    def check_cloud_event(self, event: CloudEvent) -> Iterator[str]:
        """Check each launch against the earlier ones for its NodeClaim."""
        new = event.instance
        uid = new.tags.get(UID_TAG)
        if event.kind != "launched" or not uid:
            return
        earlier = self._launched.setdefault(uid, [])
        if any(self._is_named(id_) for id_ in earlier):
            if not self._may_repeat:
                yield f"{new.provider_id} is instance {len(earlier) + 1} of NodeClaim {new.claim}, by {event.by}"
            self._repeated.add(uid)
        earlier.append(new.provider_id)

    def check_every_minute(self) -> Iterator[str]:
        """Check that further instances are terminated, and run no pods."""
        now = self.view.clock.now()
        further = self._further() if self._repeated else {}
        self._further_since = {id_: self._further_since.get(id_, now) for id_ in further}
        for id_, since in sorted(self._further_since.items()):
            if now - since > LONGEST_WITHOUT_CLAIM:
                yield f"{id_} has run since {since:%H:%M:%S} besides the instance of NodeClaim {further[id_]}"
        names = {node.metadata.name for node in nodes(self.view) if node.spec.provider_id in further}
        for pod in pods(self.view) if names else ():
            if pod.spec.node_name in names and not comes_from(pod, "DaemonSet"):
                yield f"pod {pod.metadata.name} runs on {pod.spec.node_name}, which is not the node of a NodeClaim"

    def check_at_rest(self) -> Iterator[str]:
        """Check that no further instance runs."""
        for id_, claim in (self._further() if self._repeated else {}).items():
            yield f"{id_} runs besides the instance of NodeClaim {claim}"

    def _is_named(self, id_: str) -> bool:
        """Whether something names an earlier instance."""
        if self._has_launches and self._is_recorded(id_):
            return True
        if self._has_client_token and not self._forgets:
            return self._has_tags
        return any(i.provider_id == id_ and i.state != "terminated" for i in self.view.instances())

    def _is_recorded(self, id_: str) -> bool:
        """Whether a NodeClaim has had the provider id, and no backup without it was restored since."""
        if id_ not in self._recorded:
            return False
        is_lost = self._recorded[id_] <= last_loss(self.view, RestoreBackup)
        return not is_lost or any(claim.status.provider_id == id_ for claim in claims(self.view))

    def _further(self) -> dict[str, str]:
        """Return the NodeClaims of running instances by the provider id, if another instance is the NodeClaim's."""
        own = {claim.metadata.uid: claim.status.provider_id for claim in claims(self.view)}
        return {
            i.provider_id: i.claim
            for i in self.view.instances()
            if i.runs
            and (uid := i.tags.get(UID_TAG, "")) in self._repeated
            and own.get(uid) not in {None, "", i.provider_id}
        }


class NoOrphanedInstance(InvariantChecker):
    """An instance without a NodeClaim is terminated or adopted within ten minutes; at rest, each NodeClaim has an instance and a node.

    One that cannot be adopted is kept while as many were removed within an hour as may be.
    """

    name = "no orphaned instance"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._without_claim_since: dict[str, datetime] = {}
        self._removals = RemovalCount(view)

    def check_write(self, write: Write) -> Iterator[str]:
        """Count removals."""
        self._removals.record_write(write)
        yield from ()

    def check_cloud_event(self, event: CloudEvent) -> Iterator[str]:
        """Count removals."""
        self._removals.record_event(event)
        yield from ()

    def check_every_minute(self) -> Iterator[str]:
        """Check instances without a NodeClaim, except those whose Node is draining."""
        now = self.view.clock.now()
        draining = {node.spec.provider_id for node in nodes(self.view) if node.metadata.deletion_timestamp is not None}
        without_claim = {i.provider_id for i in self._without_claim()} - draining - self._held()
        self._without_claim_since = {id_: self._without_claim_since.get(id_, now) for id_ in without_claim}
        for id_, since in sorted(self._without_claim_since.items()):
            if now - since > LONGEST_WITHOUT_CLAIM:
                yield f"{id_} has run without a NodeClaim since {since:%H:%M:%S}"

    def check_at_rest(self) -> Iterator[str]:
        """Check that each instance has a NodeClaim, and each NodeClaim an instance and a node."""
        held = self._held()
        yield from (
            f"{i.provider_id} ({i.claim}) runs without a NodeClaim"
            for i in self._without_claim()
            if i.provider_id not in held
        )
        running = {i.provider_id for i in self.view.instances() if i.runs}
        registered = {node.spec.provider_id for node in nodes(self.view)}
        for claim in claims(self.view):
            name, id_ = claim.metadata.name, claim.status.provider_id
            if id_ not in running:
                yield f"NodeClaim {name} has no running instance ({id_ or 'no provider id'})"
            elif id_ not in registered:
                yield f"NodeClaim {name} has no Node"
            if FINALIZER not in claim.metadata.finalizers:
                yield f"NodeClaim {name} has no termination finalizer"

    def _held(self) -> set[str]:
        """Return the provider ids of instances without a NodeClaim that may be neither adopted nor removed now."""
        if not self._removals.is_used_up:
            return set()
        ids = {node.spec.provider_id for node in nodes(self.view)}
        return {
            i.provider_id
            for i in self._without_claim()
            if i.state != "running" or i.provider_id not in ids or not pool_exists(self.view, i)
        }

    def _without_claim(self) -> list[CloudInstance]:
        uids = {claim.metadata.uid for claim in claims(self.view)}
        known = {claim.status.provider_id for claim in claims(self.view)}
        return [
            i
            for i in self.view.instances()
            if i.runs and UID_TAG in i.tags and i.tags[UID_TAG] not in uids and i.provider_id not in known
        ]


class InstancesDrainedFirst(InvariantChecker):
    """No instance with running pods is terminated, unless its deadline passed, or its node never registered or is not Ready."""

    name = "instances are drained before termination"

    def __init__(self, view: ScenarioView) -> None:
        super().__init__(view)
        self._skew = skew(view.scenario)
        self._staleness = staleness(view.scenario)
        self._registered: set[str] = set()

    def check_write(self, write: Write) -> Iterator[str]:
        """Record the provider ids of NodeClaims that registered."""
        if write.resource.kind == "NodeClaim" and condition_is_true(write.result, "Registered"):
            self._registered.add(write.result["status"].get("providerID", ""))
        yield from ()

    def check_cloud_event(self, event: CloudEvent) -> Iterator[str]:
        """Check the pods of an instance that a run terminates."""
        instance = event.instance
        if (
            event.kind != "terminate"
            or not event.by.startswith(RUN_USER_PREFIX)
            or instance.provider_id not in self._registered
        ):
            return
        now = self.view.clock.now()
        own_nodes = [node for node in nodes(self.view) if node.spec.provider_id == instance.provider_id]
        owners = [claim_named(self.view, instance.claim), *(claim_of(self.view, node) for node in own_nodes)]
        ends = [end for owner in owners if owner is not None and (end := end_of(owner)) is not None]
        if any(now + self._skew >= end for end in ends):
            return
        for node in own_nodes:
            if has_true_condition(node.status.conditions, "Ready"):
                running = sorted(pod.metadata.name for pod in pods(self.view) if self._runs(pod, node, now))
                if running:
                    yield f"{event.by} terminated {instance.provider_id} ({instance.claim}) with running pods {', '.join(running)}"

    def _runs(self, pod: Pod, node: Node, now: datetime) -> bool:
        if pod.spec.node_name != node.metadata.name or has_ended(pod):
            return False
        if comes_from(pod, "DaemonSet") or comes_from(pod, "Node"):
            return False
        if pod.status.start_time is None or now - pod.status.start_time <= self._staleness:
            return False  # bound after the run last read the cluster
        deleted = pod.metadata.deletion_timestamp
        return deleted is None or now + self._skew <= deleted + STUCK_AFTER
