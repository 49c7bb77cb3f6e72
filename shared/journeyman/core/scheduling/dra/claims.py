"""Which ResourceClaims a pod uses, and what they ask for.

A pod names a claim, or its status tells which one was made for it from a template. Pods whose claims ask for the same
are alike if each has its own; a claim that is named is one certain claim, however many pods name it.

Restates: karpenter pkg/controllers/provisioning/scheduling/dra.go `resolvePodClaims`, `resourceClaimName`;
pkg/scheduling/dynamicresources/allocator.go `ClassifyClaims`.
Differs: a pod whose claim has yet to be made from its template is set aside (Karpenter places it as if it needed no
devices); the node that an allocated claim is bound to by name is heeded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from journeyman.core.api.dra import ResourceClaim
from journeyman.core.api.objects import Pod
from journeyman.core.scheduling.dra.asks import ClaimAsk, UnreadableClaimError, read_matches, read_requests
from journeyman.core.scheduling.dra.pools import EVERYWHERE, reach_of
from journeyman.core.scheduling.results import PodError
from journeyman.core.state.snapshot import Snapshot

_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode

Asks = tuple[ClaimAsk, ...]
"""What the claims of a pod ask for, in the order in which it lists them."""


class Claims:
    """The claims of a cluster. `names` are those of the pods read so far, by pod key, in the order of their asks."""

    def __init__(self, snapshot: Snapshot, leaving: Collection[str]) -> None:
        """`leaving` are the UIDs of pods on their way to other nodes."""
        self._claims = {_key(claim): claim for claim in snapshot.resource_claims}
        self._classes = {found.metadata.name: found for found in snapshot.device_classes}
        self._leaving = leaving
        self._known: dict[tuple[str, bytes], ClaimAsk | PodError] = {}
        self.names: dict[str, tuple[str, ...]] = {}

    def __iter__(self) -> Iterator[ResourceClaim]:
        return iter(self._claims.values())

    def read(self, pod: Pod, *, anew: bool = False) -> Asks | PodError:
        """What a pod's claims ask for; why it cannot be scheduled if one is missing or cannot be read.

        Equal asks are the same objects. `anew`: also of claims that have their devices already.
        """
        found = self._used_by(pod)
        if isinstance(found, PodError):
            return found
        asks: list[ClaimAsk] = []
        for claim, made in found:
            ask = self._ask(claim, made=made, anew=anew)
            if isinstance(ask, PodError):
                return ask
            asks.append(ask)
        self.names[pod.key] = tuple(_key(claim) for claim, _ in found)
        return tuple(asks)

    def leaves(self, pod: Pod) -> bool:
        """Whether a pod is on its way to another node."""
        return pod.metadata.uid in self._leaving

    def gives_back(self, claim: ResourceClaim) -> bool:
        """Whether all who use its devices are on their way to other nodes, so that it will get new ones there.

        Restates: karpenter pkg/scheduling/dynamicresources/allocator.go `claimReservedEntirelyByDeletingPods`.
        """
        users = claim.status.reserved_for
        return bool(users) and all(
            user.resource == "pods" and not user.api_group and user.uid in self._leaving for user in users
        )

    def _used_by(self, pod: Pod) -> list[tuple[ResourceClaim, bool]] | PodError:
        """Its claims, each with whether it was made for this pod alone."""
        listed = {entry.name for entry in pod.spec.resource_claims}
        containers = (*pod.spec.containers, *pod.spec.init_containers)
        unknown = {claim.get("name", "") for c in containers for claim in c.resources.claims} - listed
        if unknown:
            return _invalid(f"a container uses {min(unknown)!r}, which is not among the pod's resourceClaims")
        made = {entry.name: entry.resource_claim_name for entry in pod.status.resource_claim_statuses}
        found: list[tuple[ResourceClaim, bool]] = []
        for entry in pod.spec.resource_claims:
            own = not entry.resource_claim_name
            if own and entry.name not in made:
                return _invalid(f"the ResourceClaim for {entry.name!r} has not been made from its template yet")
            name = made[entry.name] if own else entry.resource_claim_name
            if not name:
                continue  # none is needed
            claim = self._claims.get(f"{pod.metadata.namespace}/{name}")
            if claim is None or claim.metadata.deletion_timestamp is not None:
                why = "does not exist" if claim is None else "is being deleted"
                return _invalid(f"ResourceClaim {pod.metadata.namespace}/{name} {why}")
            if not any(claim is other for other, _ in found):
                found.append((claim, own))
        return found

    def _ask(self, claim: ResourceClaim, *, made: bool, anew: bool) -> ClaimAsk | PodError:
        held = claim.status.allocation is not None and not anew and not self.gives_back(claim)
        key = "" if made and not held else _key(claim)
        case = (f"{'held ' if held else ''}{key}", b"" if key else _encode(claim.spec))
        if case not in self._known:
            self._known[case] = _held(claim) if held else self._read(claim, key)
        found = self._known[case]
        if isinstance(found, PodError):
            return PodError(kind=found.kind, message=f"ResourceClaim {_key(claim)} {found.message}")
        return found

    def _read(self, claim: ResourceClaim, key: str) -> ClaimAsk | PodError:
        try:
            return ClaimAsk(
                key=key,
                requests=read_requests(claim.spec, self._classes),
                matches=read_matches(claim.spec.devices.constraints),
            )
        except UnreadableClaimError as error:
            return PodError(kind="invalid" if error.supported else "unsupported", message=error.message)


def _held(claim: ResourceClaim) -> ClaimAsk | PodError:
    """A claim that has its devices."""
    allocation = claim.status.allocation
    selector = allocation.node_selector if allocation is not None else None
    reach = EVERYWHERE if selector is None else reach_of(selector)
    if reach is None:
        return PodError(kind="unsupported", message="is allocated where its node selector cannot be read")
    return ClaimAsk(key=_key(claim), held=reach)


def _key(claim: ResourceClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def _invalid(message: str) -> PodError:
    return PodError(kind="invalid", message=message)
