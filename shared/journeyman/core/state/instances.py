"""Instances as the cloud lists them: which exist, for which NodeClaim each was launched, and which are unhealthy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain
from typing import Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from journeyman.core.api.conditions import LAUNCHED
from journeyman.core.api.launch_faults import FaultScope
from journeyman.core.api.objects import Node, NodeClaim, is_true
from journeyman.core.state.nodes_with_claims import owner_uids
from journeyman.core.state.snapshot import Snapshot
from journeyman.core.state.state_node import StateNode


class RepairPolicy(Struct, frozen=True, kw_only=True):
    """A node whose `condition` has had this `status` for longer than `tolerated_for` is repaired: it is replaced.

    Restates: karpenter pkg/cloudprovider/types.go `RepairPolicy`.
    """

    condition: str
    status: str  # "True", "False" or "Unknown"
    tolerated_for: timedelta


class InstanceStatus(Struct, frozen=True, kw_only=True):
    """A status check that an instance fails, or an event that the cloud has scheduled for it.

    `category` is InstanceStatus, SystemStatus or EventStatus, and `name` the check or event. `since` is when the check began
    to fail; None for a scheduled event.
    """

    provider_id: str
    category: str
    name: str
    since: datetime | None = None


class BuildFailure(Struct, frozen=True, kw_only=True):
    """Why a cloud could not build an instance whose launch it had accepted, or why it ended it soon afterwards.

    Attributes:
        reason: The reason of the Launched condition of a failed launch.
        message: What happened, in the cloud's own words.
        is_capacity: Whether another offering may succeed.
        scope: Whose fault it is, if it is not the offering's.
        remedy: The command to run, or the field to change.
    """

    reason: str
    message: str
    is_capacity: bool
    scope: FaultScope = FaultScope.NODE_POOL
    remedy: str = ""


TERMINATING_STATES: Final = frozenset({"shutting-down", "terminated"})
"""States of an instance whose termination has started."""
NOT_RUNNING_STATES: Final = TERMINATING_STATES | {"stopping", "stopped"}
"""States in which an instance runs no pods. A user may start a stopped one again."""


class RunningInstance(Protocol):
    """An instance that the cloud lists for this cluster (`ports.Instance`)."""

    @property
    def provider_id(self) -> str:
        """The provider id, as in `spec.providerID` of a Node."""

    @property
    def state(self) -> str:
        """The state in EC2's terms: pending, running, stopping, stopped, shutting-down or terminated."""

    @property
    def capacity_type(self) -> str:
        """The capacity type: on-demand, spot, or reserved while the instance uses a capacity reservation."""

    @property
    def launched_at(self) -> datetime:
        """The launch time."""

    @property
    def failure(self) -> BuildFailure | None:
        """Why the cloud could not build it; None if it could, or still builds it."""

    @property
    def claim(self) -> str:
        """Name of the NodeClaim that it was launched for, from its tag; empty if unknown."""

    @property
    def claim_uid(self) -> str:
        """UID of that NodeClaim, from its tag; empty if unknown."""

    @property
    def node_pool(self) -> str:
        """Name of its NodePool, from its tag; empty if unknown."""

    @property
    def cluster_uid(self) -> str:
        """UID of the cluster that launched it, from its tag; empty if unknown."""

    @property
    def image_id(self) -> str:
        """The image that it was launched from; empty if unknown."""


class CloudInstances(Struct, frozen=True, kw_only=True, dict=True):
    """The cluster's instances, listed before the cluster was read, without those of other clusters (`is_foreign`).

    `listed` includes terminating instances. `missing` are provider ids of Nodes and NodeClaims that were not listed and that the
    cloud does not find by id either, or only as terminated, and those of other clusters' instances; `failures` says why they ended,
    as far as the cloud does.
    """

    listed: tuple[RunningInstance, ...] = ()
    missing: frozenset[str] = frozenset()
    failures: Mapping[str, BuildFailure] = field(default_factory=dict)

    def find(self, provider_id: str) -> RunningInstance | None:
        """Return the listed instance with this id; None if it was not listed."""
        return self._by_provider_id.get(provider_id)

    def failure_of(self, provider_id: str) -> BuildFailure | None:
        """Return why the cloud could not build the instance, or ended it; None if it does not say."""
        instance = self.find(provider_id)
        return instance.failure if instance is not None else self.failures.get(provider_id)

    def _launched_for(self, claim: NodeClaim) -> Iterator[str]:
        """Yield the provider ids of the instances whose tags name this claim: a user may have copied tags.

        A tag with another UID names an earlier claim of the same name. Instances of Karpenter have no UID tag; neither have
        those whose tag a user removed, and of these, one that is older than the claim was launched for an earlier one. Some
        clouds know only the UID while they build the instance.
        """
        name, uid, created_at = claim.metadata.name, claim.metadata.uid, claim.metadata.creation_timestamp
        by_both, by_uid, by_name = (self._by_claim.get(key, ()) for key in ((uid, name), (uid, ""), ("", name)))
        younger = (i for i in by_name if created_at is None or i.launched_at >= created_at)
        yield from (instance.provider_id for instance in chain(by_both, by_uid, younger))

    def with_own_instances(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot; NodeClaims that name another instance than theirs name the one whose tags name them.

        A user may edit a provider id, and remove what else connects the NodeClaim with its Node. Then only the tags say which
        Node must be drained before the instance terminates, unless another NodeClaim owns the Node: a user has copied the tags. A
        NodeClaim that is to be launched keeps its status: the launch returns the instance.
        """
        return snapshot.with_claims(self._with_own_instance(claim, snapshot) for claim in snapshot.claims)

    def _with_own_instance(self, claim: NodeClaim, snapshot: Snapshot) -> NodeClaim:
        is_launched = is_true(claim.status.conditions, LAUNCHED) or claim.metadata.deletion_timestamp is not None
        joined = snapshot.nodes_by_provider_id
        tagged = next(
            (id_ for id_ in self._launched_for(claim) if not belong_to_another(joined.get(id_, ()), claim)), ""
        )
        if not is_launched or not tagged or tagged == claim.status.provider_id or self._names_its_own(claim, snapshot):
            return claim
        return replace(claim, status=replace(claim.status, provider_id=tagged))

    def _names_its_own(self, claim: NodeClaim, snapshot: Snapshot) -> bool:
        """Whether nothing speaks against the NodeClaim's provider id; a list of instances may lack the instance of a Node."""
        named = self.find(claim.status.provider_id)
        if named is not None:
            return named.claim in ("", claim.metadata.name)
        return claim.status.provider_id in snapshot.nodes_by_provider_id

    def own(self, snapshot: Snapshot) -> frozenset[str]:
        """Return the provider ids of the listed instances that NodeClaims name."""
        return frozenset(c.status.provider_id for c in snapshot.claims if self.find(c.status.provider_id) is not None)

    @cached_property
    def ended(self) -> frozenset[str]:
        """Provider ids of instances that do not exist or do not run."""
        return self.missing | {instance.provider_id for instance in self.listed if instance.state in NOT_RUNNING_STATES}

    def is_stopped(self, state: StateNode) -> bool:
        """Whether the instance is stopped and its node not ready: pods bound to it neither run nor shut down gracefully."""
        instance = self.find(state.provider_id)
        return not state.ready and instance is not None and instance.state == "stopped"

    @cached_property
    def _by_provider_id(self) -> Mapping[str, RunningInstance]:
        return {instance.provider_id: instance for instance in self.listed}

    @cached_property
    def by_claim_uid(self) -> Mapping[str, list[RunningInstance]]:
        """Instances by the UID of the NodeClaim in their tags, each list by provider id."""
        found: defaultdict[str, list[RunningInstance]] = defaultdict(list)
        for instance in sorted(self.listed, key=lambda i: i.provider_id):
            found[instance.claim_uid].append(instance)
        return found

    @cached_property
    def _by_claim(self) -> Mapping[tuple[str, str], list[RunningInstance]]:
        """Instances by UID and name of the claim; those that are not terminating first."""
        found: defaultdict[tuple[str, str], list[RunningInstance]] = defaultdict(list)
        for instance in sorted(self.listed, key=lambda i: (i.state in TERMINATING_STATES, i.provider_id)):
            if instance.claim or instance.claim_uid:
                found[instance.claim_uid, instance.claim].append(instance)
        return found


def is_foreign(instance: RunningInstance, cluster_uid: str) -> bool:
    """Whether another cluster launched the instance; unknown without its tag, or without this cluster's UID."""
    return bool(instance.cluster_uid and cluster_uid) and instance.cluster_uid != cluster_uid


def belong_to_another(nodes: Iterable[Node], claim: NodeClaim) -> bool:
    """Whether one of the Nodes names owners, and the NodeClaim is none of them."""
    return any(owners and claim.metadata.uid not in owners for owners in (tuple(owner_uids(node)) for node in nodes))
