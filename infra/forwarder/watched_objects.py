"""The watched objects, reduced to the fields that the forwarder reads, and how each kind is requested and decoded.

pods     Pods without a node that have not finished, whole (two to four kB each): whether kube-scheduler found no node for a pod
         is a condition, which is part of neither the metadata nor the table row.
nodes    Rows of the server's own table, as `kubectl get nodes` prints it, with the metadata that the server adds to each row:
         Ready is in the row only, the deletion timestamp in the metadata only. That is one to three kB; a whole node has ten to
         twenty, most of them for its images. The Status column reads `Ready` or `NotReady`, perhaps followed by `,SchedulingDisabled`
         (kubernetes v1.36.3 pkg/printers/internalversion/printers.go `printNode`).
joining  Whole nodes of NodePools that are not initialized: which taints and resources they have is in neither the row nor the
         metadata. The label selector leaves out all others, so these are few.
claims   Metadata of NodeClaims: created, being deleted, gone.
pools    Metadata of NodePools and NodeClasses: the generation counts changes of their specs.

A server that does not know these formats may send whole objects instead; the same decoders read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from journeyman.errors import InvalidObjectError
from journeyman.kube.json_decoding import JSON, ListMetadata, decode

T = TypeVar("T")

_TABLE: Final = f"{JSON};as=Table;v=v1;g=meta.k8s.io,{JSON}"
_METADATA: Final = f"{JSON};as=PartialObjectMetadata;v=v1;g=meta.k8s.io,{JSON}"
_METADATA_LIST: Final = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{JSON}"
_NAME, _STATUS = 0, 1  # columns of the node table
_NODE_POOL: Final = "karpenter.sh/nodepool"
_INITIALIZED: Final = "karpenter.sh/initialized"
_REMOVED_WITH_READINESS: Final = ("karpenter.sh/", "node.kubernetes.io/")


class PodCondition(msgspec.Struct, frozen=True, gc=False):
    """An entry of `status.conditions`."""

    type: str = ""
    status: str = ""
    reason: str = ""


class PendingPodStatus(msgspec.Struct, frozen=True, gc=False):
    """`status` of a pod."""

    conditions: tuple[PodCondition, ...] = ()


class PendingPodMetadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """`metadata` of a pod."""

    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None


class PendingPod(msgspec.Struct, frozen=True, gc=False):
    """A pod without a node."""

    metadata: PendingPodMetadata = PendingPodMetadata()
    status: PendingPodStatus = PendingPodStatus()

    @property
    def is_unschedulable(self) -> bool:
        """Whether kube-scheduler found no node for it; a pod with scheduling gates has another reason."""
        return any(
            c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
            for c in self.status.conditions
        )


class NodeState(NamedTuple):
    """A node: whether its Ready condition is True, and whether it is being deleted."""

    name: str
    ready: bool
    version: str
    deleting: bool = False


class NodeClaimMetadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """`metadata` of a NodeClaim."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None


class NodeClaimState(msgspec.Struct, frozen=True, gc=False):
    """A NodeClaim."""

    metadata: NodeClaimMetadata = NodeClaimMetadata()

    @property
    def is_deleting(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def has_node_pool(self) -> bool:
        """Whether the steps created it, for a NodePool."""
        return _NODE_POOL in (self.metadata.labels or {})


class SpecMetadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """`metadata` of a NodePool or NodeClass; the generation counts changes of the spec."""

    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None


class SpecState(msgspec.Struct, frozen=True, gc=False):
    """A NodePool or a NodeClass."""

    metadata: SpecMetadata = SpecMetadata()

    @property
    def revision(self) -> SpecRevision:
        """The fields whose changes the forwarder sends notifications for."""
        return SpecRevision(self.metadata.generation, self.metadata.deletion_timestamp is not None)


class SpecRevision(NamedTuple):
    """The generation of a spec, and whether the object is being deleted."""

    generation: int
    deleting: bool


class ObjectPage(NamedTuple, Generic[T]):
    """The objects of one page of a list, and the list's metadata."""

    objects: Iterable[T]
    metadata: ListMetadata


class WatchedResource(Protocol[T]):
    """One kind of object: how it is requested, and how pages and watch events are decoded.

    Attributes:
        name: The plural, for logs and metrics.
        path: The path of the list.
        parameters: Query parameters of lists and watches.
        list_accept: Media types of lists.
        watch_accept: Media types of watches.
    """

    name: str
    path: str
    parameters: Mapping[str, str]
    list_accept: str
    watch_accept: str

    def decode_page(self, body: Any) -> ObjectPage[T]:
        """Return a page of a list. Raises as `journeyman.kube.json_decoding.decode`."""
        ...

    def decode_object(self, body: Any) -> tuple[T, str]:
        """Return the object of a watch event, and its version. Raises as `decode_page`."""
        ...


class _PodList(msgspec.Struct, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: tuple[PendingPod, ...] = ()


class PodResource:
    """Pods without a node."""

    name = "pods"
    path = "/api/v1/pods"
    parameters: Mapping[str, str] = {"fieldSelector": "spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"}
    list_accept = watch_accept = JSON

    def decode_page(self, body: Any) -> ObjectPage[PendingPod]:
        """Return a page of a list."""
        page: _PodList = decode(body, _PodList, kind="Pod")
        return ObjectPage(page.items, page.metadata)

    def decode_object(self, body: Any) -> tuple[PendingPod, str]:
        """Return the object of a watch event, and its version."""
        pod: PendingPod = decode(body, PendingPod, kind="Pod")
        return pod, pod.metadata.resource_version


class _NodeMetadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class _NodeConditions(msgspec.Struct, frozen=True):
    conditions: tuple[PodCondition, ...] = ()


class _WholeNode(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata = _NodeMetadata()
    status: _NodeConditions = _NodeConditions()

    def state(self) -> NodeState:
        ready = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
        deleting = self.metadata.deletion_timestamp is not None
        return NodeState(self.metadata.name, ready, self.metadata.resource_version, deleting)


class _RowObject(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata = _NodeMetadata()


class _NodeRow(msgspec.Struct, frozen=True):
    cells: tuple[Any, ...] = ()
    object: _RowObject | None = None

    def state(self, version: str) -> NodeState:
        """Return the node, with the version of its metadata, or the given one if the row has no metadata."""
        try:
            name, status = str(self.cells[_NAME]), str(self.cells[_STATUS])
        except IndexError:
            raise InvalidObjectError("a row of the node table has too few columns", kind="Node") from None
        metadata = self.object.metadata if self.object else _NodeMetadata()
        is_ready, is_deleting = status.partition(",")[0] == "Ready", metadata.deletion_timestamp is not None
        return NodeState(name, is_ready, metadata.resource_version or version, is_deleting)


class _NodeList(msgspec.Struct, frozen=True):
    """A table, or a list of whole nodes."""

    metadata: ListMetadata = ListMetadata()
    rows: tuple[_NodeRow, ...] | None = None
    items: tuple[_WholeNode, ...] | None = None


class _NodeEvent(_WholeNode, frozen=True):
    """A table of one row, or a whole node; either has its version in its metadata."""

    rows: tuple[_NodeRow, ...] | None = None


class NodeResource:
    """All nodes, as rows of a table with their metadata."""

    name = "nodes"
    path = "/api/v1/nodes"
    parameters: Mapping[str, str] = {"includeObject": "Metadata"}
    list_accept = watch_accept = _TABLE

    def decode_page(self, body: Any) -> ObjectPage[NodeState]:
        """Return a page of a list."""
        page: _NodeList = decode(body, _NodeList, kind="Node")
        rows = (row.state(page.metadata.resource_version) for row in page.rows or ())
        return ObjectPage([*rows, *(item.state() for item in page.items or ())], page.metadata)

    def decode_object(self, body: Any) -> tuple[NodeState, str]:
        """Return the object of a watch event, and its version."""
        event: _NodeEvent = decode(body, _NodeEvent, kind="Node")
        version = event.metadata.resource_version
        return (event.rows[0].state(version) if event.rows else event.state()), version


class _Taint(msgspec.Struct, frozen=True, gc=False):
    key: str = ""
    effect: str = ""


class _UninitializedSpec(msgspec.Struct, frozen=True):
    taints: tuple[_Taint, ...] = ()


class _UninitializedStatus(msgspec.Struct, frozen=True):
    allocatable: dict[str, str] = {}


class UninitializedNode(msgspec.Struct, frozen=True):
    """A node of a NodePool that is not initialized."""

    metadata: _NodeMetadata = _NodeMetadata()
    spec: _UninitializedSpec = _UninitializedSpec()
    status: _UninitializedStatus = _UninitializedStatus()

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    @property
    def taints(self) -> frozenset[str]:
        """The taints that others remove: not Journeyman's own, nor those that say that the node is not ready."""
        own = (t for t in self.spec.taints if not t.key.startswith(_REMOVED_WITH_READINESS))
        return frozenset(f"{taint.key}:{taint.effect}" for taint in own)

    @property
    def resources(self) -> frozenset[str]:
        """The names of the resources that it offers."""
        return frozenset(name for name, amount in self.status.allocatable.items() if amount not in {"0", ""})


class _UninitializedNodeList(msgspec.Struct, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: tuple[UninitializedNode, ...] = ()


class UninitializedNodeResource:
    """The nodes of NodePools that are not initialized."""

    name = "uninitialized-nodes"
    path = "/api/v1/nodes"
    parameters: Mapping[str, str] = {"labelSelector": f"{_NODE_POOL},{_INITIALIZED}!=true"}
    list_accept = watch_accept = JSON

    def decode_page(self, body: Any) -> ObjectPage[UninitializedNode]:
        """Return a page of a list."""
        page: _UninitializedNodeList = decode(body, _UninitializedNodeList, kind="Node")
        return ObjectPage(page.items, page.metadata)

    def decode_object(self, body: Any) -> tuple[UninitializedNode, str]:
        """Return the object of a watch event, and its version."""
        node: UninitializedNode = decode(body, UninitializedNode, kind="Node")
        return node, node.metadata.resource_version


class _NodeClaimList(msgspec.Struct, frozen=True):
    """A list of metadata; an empty one is `null`."""

    metadata: ListMetadata = ListMetadata()
    items: tuple[NodeClaimState, ...] | None = None


class NodeClaimResource:
    """All NodeClaims, as metadata."""

    name = "nodeclaims"
    path = "/apis/karpenter.sh/v1/nodeclaims"
    parameters: Mapping[str, str] = {}
    list_accept = _METADATA_LIST
    watch_accept = _METADATA

    def decode_page(self, body: Any) -> ObjectPage[NodeClaimState]:
        """Return a page of a list."""
        page: _NodeClaimList = decode(body, _NodeClaimList, kind="NodeClaim")
        return ObjectPage(page.items or (), page.metadata)

    def decode_object(self, body: Any) -> tuple[NodeClaimState, str]:
        """Return the object of a watch event, and its version."""
        claim: NodeClaimState = decode(body, NodeClaimState, kind="NodeClaim")
        return claim, claim.metadata.resource_version


class _SpecList(msgspec.Struct, frozen=True):
    """A list of metadata; an empty one is `null`."""

    metadata: ListMetadata = ListMetadata()
    items: tuple[SpecState, ...] | None = None


class _SpecResource:
    """All objects of a kind, as metadata."""

    kind = ""
    parameters: Mapping[str, str] = {}
    list_accept = _METADATA_LIST
    watch_accept = _METADATA

    def decode_page(self, body: Any) -> ObjectPage[SpecState]:
        """Return a page of a list."""
        page: _SpecList = decode(body, _SpecList, kind=self.kind)
        return ObjectPage(page.items or (), page.metadata)

    def decode_object(self, body: Any) -> tuple[SpecState, str]:
        """Return the object of a watch event, and its version."""
        spec: SpecState = decode(body, SpecState, kind=self.kind)
        return spec, spec.metadata.resource_version


class NodePoolResource(_SpecResource):
    """All NodePools."""

    kind = "NodePool"
    name = "nodepools"
    path = "/apis/karpenter.sh/v1/nodepools"


class NodeClassResource(_SpecResource):
    """All NodeClasses of one kind and API group."""

    def __init__(self, kind: str, group: str, version: str) -> None:
        self.kind = kind
        self.name = f"{kind.lower()}es"
        self.path = f"/apis/{group}/{version}/{self.name}"


NODE_CLASSES: Mapping[str, tuple[NodeClassResource, ...]] = {
    "aws": (NodeClassResource("EC2NodeClass", "karpenter.k8s.aws", "v1"),),
    "alibaba": (
        NodeClassResource("ECSNodeClass", "karpenter.k8s.alibabacloud", "v1alpha1"),
        NodeClassResource("ECSNodeClass", "karpenter.alibabacloud.com", "v1alpha1"),
    ),
    "huawei": (NodeClassResource("CCENodeClass", "karpenter.k8s.huawei", "v1alpha1"),),
}
"""The kinds of NodeClasses by cloud."""
