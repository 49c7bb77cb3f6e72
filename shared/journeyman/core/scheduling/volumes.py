"""Volume topology and volume limits: the nodes that can attach a pod's volumes, and how many more each can attach.

A bound claim restricts its pod to its PersistentVolume's node affinity; an unbound claim with WaitForFirstConsumer, to
its StorageClass's allowed topologies. Each gives a list of alternatives; a pod with several volumes needs one
alternative of each that are compatible. A CSINode reports how many volumes of each driver an existing node can attach;
the limit of a new node is unknown.

Restates: karpenter pkg/controllers/provisioning/scheduling/volumetopology.go, pkg/scheduling/volumeusage.go.
Differs: the order of the alternatives does not depend on the order of the volumes, so that equal pods compare equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, Pod, Volume
from journeyman.core.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from journeyman.core.api.wording import listed
from journeyman.core.scheduling.requirements import EMPTY, InvalidRequirementError, Requirements, from_selectors
from journeyman.core.state.pod_predicates import is_terminal
from journeyman.core.state.snapshot import Snapshot
from journeyman.core.state.state_node import StateNode

MAX_ALTERNATIVES: Final = 256
"""A pod whose volumes have more combinations of alternatives gets an error; real pods have about one per zone."""

_EBS: Final = "ebs.csi.aws.com"
# CSI drivers that replaced in-tree volume plugins (k8s.io/csi-translation-lib)
_CSI_DRIVERS: Final = {
    "kubernetes.io/aws-ebs": _EBS,
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
}

Alternatives = tuple[Requirements, ...]
_ANYWHERE: Final[Alternatives] = (EMPTY,)
_Terms = tuple[tuple[NodeSelectorRequirement, ...], ...]


class SharedVolume(NamedTuple):
    """A volume that several pods use: its CSI driver, and the key of its claim (`namespace/name`)."""

    driver: str
    claim: str


class PodVolumes(Struct, frozen=True, kw_only=True):
    """The node requirements and counts of a pod's volumes.

    `terms`: the node must meet one of them (`(EMPTY,)` if every node does; a single contradiction if none does).
    `counts`: volumes that only this pod uses, by CSI driver; `shared`: volumes that other pods use too, sorted. A node
    attaches a shared volume once.
    """

    terms: Alternatives = (EMPTY,)
    counts: Mapping[str, int] = field(default_factory=dict)
    shared: tuple[SharedVolume, ...] = ()

    def __hash__(self) -> int:
        return hash((self.terms, frozenset(self.counts.items()), self.shared))


NO_VOLUMES: Final = PodVolumes()


class StorageObjects(Struct, frozen=True, kw_only=True, eq=False):
    """The storage objects of a snapshot, indexed. `shared` are the keys of claims that more than one pod uses."""

    claims: Mapping[str, PersistentVolumeClaim]  # by namespace/name
    volumes: Mapping[str, PersistentVolume]
    classes: Mapping[str, StorageClass]
    nodes: Mapping[str, CSINode]
    shared: frozenset[str]

    @classmethod
    def of(cls, snapshot: Snapshot) -> StorageObjects:
        """Index a snapshot's storage objects."""
        with_volumes = (pod for pod in snapshot.pods if pod.spec.volumes and not is_terminal(pod))
        users = Counter(key for pod in with_volumes for key in claim_keys(pod))
        return cls(
            claims={f"{c.metadata.namespace}/{c.metadata.name}": c for c in snapshot.persistent_volume_claims},
            volumes={v.metadata.name: v for v in snapshot.persistent_volumes},
            classes={c.metadata.name: c for c in snapshot.storage_classes},
            nodes={n.metadata.name: n for n in snapshot.csi_nodes},
            shared=frozenset(key for key, pods in users.items() if pods > 1),
        )


def claim_keys(pod: Pod) -> tuple[str, ...]:
    """Return the keys of the PersistentVolumeClaims of a pod's volumes, each once, sorted.

    A generic ephemeral volume's claim is named after its pod and the volume.
    """
    if not pod.spec.volumes:
        return ()
    names = {_claim_name(pod, volume) for volume in pod.spec.volumes} - {None}
    return tuple(sorted(f"{pod.metadata.namespace}/{name}" for name in names))


def _claim_name(pod: Pod, volume: Volume) -> str | None:
    """Return the name of the volume's claim, None without a claim; no claim has an empty name."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else None


def resolve_volumes(pod: Pod, storage: StorageObjects) -> PodVolumes | str:
    """Return the node requirements of the pod's volumes, or why no node can run it."""
    keys = claim_keys(pod)
    if not keys:
        return NO_VOLUMES
    terms = _ANYWHERE
    counts: Counter[str] = Counter()
    shared: list[SharedVolume] = []
    for key in keys:
        found = _attachable_at(key, storage)
        if isinstance(found, str):
            return found
        terms = _combined(terms, found)
        if len(terms) > MAX_ALTERNATIVES:
            return f"its volumes have more than {MAX_ALTERNATIVES} combinations of topologies"
        driver = driver_of(storage.claims[key], storage)
        if driver and key in storage.shared:
            shared.append(SharedVolume(driver, key))
        elif driver:
            counts[driver] += 1
    return PodVolumes(terms=terms, counts=dict(sorted(counts.items())), shared=tuple(sorted(shared)))


def describe_volumes(pod: Pod, storage: StorageObjects) -> str:
    """Return the pod's PersistentVolumeClaims that restrict its node, and where each can be attached, as text."""
    reached = ((key, _attachable_at(key, storage)) for key in claim_keys(pod))
    places = [f"{key} {_place(found)}" for key, found in reached if not isinstance(found, str) and found != _ANYWHERE]
    noun = "PersistentVolumeClaim" if len(places) == 1 else "PersistentVolumeClaims"
    return f"{noun} {listed(places, 'and')}" if places else ""


def _place(alternatives: Alternatives) -> str:
    """Return where a volume can be attached, as text."""
    zones = [term.get(labels.ZONE) for term in alternatives if len(term) == 1]
    if len(zones) == len(alternatives) and all(zone is not None and not zone.complement for zone in zones):
        return f"in zone {listed(sorted({value for zone in zones if zone is not None for value in zone.values}))}"
    return f"on nodes with {listed(' and '.join(map(str, term.values())) for term in alternatives)}"


def _attachable_at(key: str, storage: StorageObjects) -> Alternatives | str:
    """Return the alternatives of one claim's volume, or the error that makes it unusable.

    Restates: karpenter volumetopology.go `ValidatePersistentVolumeClaims`, `getRequirements`.
    """
    claim = storage.claims.get(key)
    if claim is None:
        return f"PersistentVolumeClaim {key} does not exist"
    if claim.metadata.deletion_timestamp is not None:
        return f"PersistentVolumeClaim {key} is being deleted"
    if claim.status.phase == "Lost":
        return f"PersistentVolumeClaim {key} has lost its PersistentVolume {claim.spec.volume_name}"
    try:
        return _reach_bound(claim, key, storage) if claim.spec.volume_name else _reach_unbound(claim, key, storage)
    except InvalidRequirementError as error:
        return f"the topology of PersistentVolumeClaim {key} cannot be read: {error.message}"


def _reach_bound(claim: PersistentVolumeClaim, key: str, storage: StorageObjects) -> Alternatives | str:
    name = claim.spec.volume_name
    volume = storage.volumes.get(name)
    if volume is None:
        return f"PersistentVolume {name} of PersistentVolumeClaim {key} does not exist"
    if volume.metadata.deletion_timestamp is not None:
        return f"PersistentVolume {name} of PersistentVolumeClaim {key} is being deleted"
    if labels.BIND_COMPLETED not in claim.metadata.annotations:
        return f"PersistentVolumeClaim {key} is not bound to PersistentVolume {name} yet"
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return _ANYWHERE
    moves = volume.spec.local is not None or volume.spec.host_path is not None
    return _alternatives(tuple(t.match_expressions for t in affinity.required.node_selector_terms), moves)


def _reach_unbound(claim: PersistentVolumeClaim, key: str, storage: StorageObjects) -> Alternatives | str:
    name = claim.spec.storage_class_name
    if not name:
        return f"PersistentVolumeClaim {key} is unbound and has no StorageClass"
    storage_class = storage.classes.get(name)
    if storage_class is None:
        return f"StorageClass {name} of PersistentVolumeClaim {key} does not exist"
    if storage_class.volume_binding_mode == "Immediate":
        return f"PersistentVolumeClaim {key} is unbound, and its StorageClass {name} binds before a pod is scheduled"
    terms = tuple(
        tuple(NodeSelectorRequirement(key=e.key, operator="In", values=e.values) for e in t.match_label_expressions)
        for t in storage_class.allowed_topologies
    )
    return _alternatives(terms, False)


@lru_cache(maxsize=4096)
def _alternatives(terms: _Terms, moves: bool) -> Alternatives:
    """Return the alternatives of these terms. With `moves`, hostname expressions are ignored: the pod changes its node.

    Empty terms are ignored; a term with only a hostname expression then admits every node. Raises
    InvalidRequirementError.
    """
    kept = tuple(tuple(e for e in term if not (moves and e.key == labels.HOSTNAME)) for term in terms if term)
    if not kept or not all(kept):
        return _ANYWHERE
    return _possible([from_selectors(term) for term in kept])


def _combined(left: Alternatives, right: Alternatives) -> Alternatives:
    """Return every combination of one alternative of each."""
    if _ANYWHERE in (left, right):
        return right if left == _ANYWHERE else left
    return _possible([a & b for a in left for b in right])


def _possible(alternatives: Sequence[Requirements]) -> Alternatives:
    """Return the distinct alternatives without contradictions, sorted; if none is left, the first contradiction."""
    possible = {_order(term): term for term in alternatives if not any(r.impossible for r in term.values())}
    return tuple(possible[order] for order in sorted(possible)) or (min(alternatives, key=_order),)


def _order(term: Requirements) -> tuple[tuple[object, ...], ...]:
    """Return a sort key that is equal for equal requirements."""
    return tuple(
        (key, r.complement, tuple(sorted(r.values)), *(-1 if n is None else n for n in (r.lower, r.upper)), r.present)
        for key, r in sorted(term.items())
    )


def driver_of(claim: PersistentVolumeClaim, storage: StorageObjects) -> str:
    """Return the CSI driver of a claim's volume; empty if it has none or it is unknown.

    Restates: karpenter volumeusage.go `ResolveDriver`.
    """
    if claim.spec.volume_name:
        volume = storage.volumes.get(claim.spec.volume_name)
        if volume is None:
            return ""
        if volume.spec.csi is not None:
            return volume.spec.csi.driver
        return _EBS if volume.spec.aws_elastic_block_store is not None else ""
    storage_class = storage.classes.get(claim.spec.storage_class_name or "")
    return _CSI_DRIVERS.get(storage_class.provisioner, storage_class.provisioner) if storage_class is not None else ""


class VolumeUsage(Struct, frozen=True, kw_only=True):
    """How many volumes a node can attach, by CSI driver, and the keys of the claims attached now.

    A driver without a limit attaches any number. `attached` may name drivers without a limit.
    """

    limits: Mapping[str, int]
    attached: Mapping[str, frozenset[str]]

    def free(self, driver: str) -> int | None:
        """Return how many more volumes of the driver the node can attach; None without a limit, negative above it."""
        limit = self.limits.get(driver)
        return None if limit is None else limit - len(self.attached.get(driver, ()))


_MOST_VOLUMES: Final = 2**31 - 1
ANY_NUMBER: Final = VolumeUsage(limits={}, attached={})


def volume_usage(node: StateNode, storage: StorageObjects, rescheduled: Collection[str]) -> VolumeUsage:
    """Return how many volumes a node can attach, and what it has attached.

    Args:
        node: A node with the pods bound to it.
        storage: The storage objects.
        rescheduled: Keys of pods that this pass reschedules; their volumes go with them.

    Restates: karpenter volumeusage.go `VolumeUsage`: a claim counts once per node, one that does not exist does not
    count.
    """
    csi_node = storage.nodes.get(node.node.metadata.name) if node.node is not None else None
    if csi_node is None:
        return ANY_NUMBER
    limits = {
        driver.name: min(max(driver.allocatable.count, 0), _MOST_VOLUMES)
        for driver in csi_node.spec.drivers
        if driver.allocatable is not None and driver.allocatable.count is not None
    }
    attached: dict[str, set[str]] = {}
    for pod in node.pods if limits else ():
        for key in claim_keys(pod) if pod.key not in rescheduled else ():
            if key in storage.claims and (driver := driver_of(storage.claims[key], storage)):
                attached.setdefault(driver, set()).add(key)
    return VolumeUsage(limits=limits, attached={name: frozenset(keys) for name, keys in sorted(attached.items())})
