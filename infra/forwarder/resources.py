"""What is watched, and how little of it travels.

pods     Those without a node that have not finished. They come whole, two to four kB each: what is asked of them, whether
         kube-scheduler gave up, is a condition, and neither their metadata nor their table row has it.
nodes    As rows of the server's own table, the one `kubectl get nodes` prints, with the metadata that the server adds to each
         row: Ready is in the row alone, that a node is being deleted in the metadata alone. That is one to three
         kB, where a whole node has ten to twenty (its images alone!). The Status column reads `Ready` or `NotReady`,
         perhaps with `,SchedulingDisabled` behind it (kubernetes v1.36.3 pkg/printers/internalversion/printers.go `printNode`).
claims   Metadata only: made, being deleted, gone.
pools    Metadata only, of NodePools and NodeClasses: the generation counts changes of their specs.

A server that does not know these forms may send whole objects instead; the same decoders read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from infra.forwarder.fleet import Claim, Node
from infra.forwarder.pods import Condition, Pod
from infra.forwarder.specs import Spec

T = TypeVar("T")

_JSON: Final = "application/json"
_TABLE: Final = f"{_JSON};as=Table;v=v1;g=meta.k8s.io,{_JSON}"
_METADATA: Final = f"{_JSON};as=PartialObjectMetadata;v=v1;g=meta.k8s.io,{_JSON}"
_METADATA_LIST: Final = f"{_JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{_JSON}"
_NAME, _STATUS = 0, 1  # columns of the node table


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """`metadata` of a list or a table."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(NamedTuple, Generic[T]):
    """Some of a list's objects, and where the list stands."""

    objects: Iterable[T]
    metadata: ListMetadata


class Resource(Protocol[T]):
    """One kind of object: how it is asked for, and how its pages and changes are decoded (`msgspec.DecodeError`)."""

    name: str
    path: str
    selector: str
    list_accept: str
    watch_accept: str

    def page(self, data: bytes | bytearray) -> Page[T]:
        """A page of a list."""
        ...

    def changed(self, data: bytes | msgspec.Raw) -> tuple[T, str]:
        """The object of a watch event, and its version."""
        ...


class _PodPage(msgspec.Struct, frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: tuple[Pod, ...] = ()


class Pods:
    """Pods without a node."""

    name = "pods"
    path = "/api/v1/pods"
    selector = "spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"
    list_accept = watch_accept = _JSON

    def page(self, data: bytes | bytearray) -> Page[Pod]:
        """A page of a list."""
        page = msgspec.json.decode(data, type=_PodPage)
        return Page(page.items, page.metadata)

    def changed(self, data: bytes | msgspec.Raw) -> tuple[Pod, str]:
        """The object of a watch event."""
        pod = msgspec.json.decode(data, type=Pod)
        return pod, pod.metadata.resource_version


class _NodeMetadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class _NodeStatus(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class _WholeNode(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata = _NodeMetadata()
    status: _NodeStatus = _NodeStatus()

    def node(self) -> Node:
        ready = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
        leaving = self.metadata.deletion_timestamp is not None
        return Node(self.metadata.name, ready, self.metadata.resource_version, leaving)


class _RowObject(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata = _NodeMetadata()


class _Row(msgspec.Struct, frozen=True):
    cells: tuple[Any, ...] = ()
    object: _RowObject | None = None

    def node(self, version: str) -> Node:
        """The node; of the version that its metadata says, or the given one if it has none."""
        status, metadata = str(self.cells[_STATUS]), self.object.metadata if self.object else _NodeMetadata()
        is_ready, is_leaving = status.partition(",")[0] == "Ready", metadata.deletion_timestamp is not None
        return Node(str(self.cells[_NAME]), is_ready, metadata.resource_version or version, is_leaving)


class _NodePage(msgspec.Struct, frozen=True):
    """A table, or a list of whole nodes."""

    metadata: ListMetadata = ListMetadata()
    rows: tuple[_Row, ...] | None = None
    items: tuple[_WholeNode, ...] | None = None


class _NodeChange(_WholeNode, frozen=True):
    """A table of one row, or a whole node; either has its version in its metadata."""

    rows: tuple[_Row, ...] | None = None


class Nodes:
    """All nodes, as rows of a table with their metadata."""

    name = "nodes"
    path = "/api/v1/nodes?includeObject=Metadata"
    selector = ""
    list_accept = watch_accept = _TABLE

    def page(self, data: bytes | bytearray) -> Page[Node]:
        """A page of a list."""
        page = msgspec.json.decode(data, type=_NodePage)
        rows = (row.node(page.metadata.resource_version) for row in page.rows or ())
        return Page([*rows, *(item.node() for item in page.items or ())], page.metadata)

    def changed(self, data: bytes | msgspec.Raw) -> tuple[Node, str]:
        """The object of a watch event."""
        change = msgspec.json.decode(data, type=_NodeChange)
        version = change.metadata.resource_version
        return (change.rows[0].node(version) if change.rows else change.node()), version


class _ClaimPage(msgspec.Struct, frozen=True):
    """A list of metadata: where there are none, API servers write `null`."""

    metadata: ListMetadata = ListMetadata()
    items: tuple[Claim, ...] | None = None


class NodeClaims:
    """All NodeClaims, their metadata only."""

    name = "nodeclaims"
    path = "/apis/karpenter.sh/v1/nodeclaims"
    selector = ""
    list_accept = _METADATA_LIST
    watch_accept = _METADATA

    def page(self, data: bytes | bytearray) -> Page[Claim]:
        """A page of a list."""
        page = msgspec.json.decode(data, type=_ClaimPage)
        return Page(page.items or (), page.metadata)

    def changed(self, data: bytes | msgspec.Raw) -> tuple[Claim, str]:
        """The object of a watch event."""
        claim = msgspec.json.decode(data, type=Claim)
        return claim, claim.metadata.resource_version


class _SpecPage(msgspec.Struct, frozen=True):
    """A list of metadata: where there are none, API servers write `null`."""

    metadata: ListMetadata = ListMetadata()
    items: tuple[Spec, ...] | None = None


class _Specs:
    """All objects of a kind, their metadata only."""

    selector = ""
    list_accept = _METADATA_LIST
    watch_accept = _METADATA

    def page(self, data: bytes | bytearray) -> Page[Spec]:
        """A page of a list."""
        page = msgspec.json.decode(data, type=_SpecPage)
        return Page(page.items or (), page.metadata)

    def changed(self, data: bytes | msgspec.Raw) -> tuple[Spec, str]:
        """The object of a watch event."""
        spec = msgspec.json.decode(data, type=Spec)
        return spec, spec.metadata.resource_version


class NodePools(_Specs):
    """All NodePools."""

    name = "nodepools"
    path = "/apis/karpenter.sh/v1/nodepools"


class NodeClasses(_Specs):
    """All NodeClasses of the one kind that nodes are launched for yet."""

    name = "ec2nodeclasses"
    path = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"


# msgspec looks into a type at its first use, and two threads that do so side by side may crash: each kind has one.
for _type in (_PodPage, Pod, _NodePage, _NodeChange, _ClaimPage, Claim, _SpecPage, Spec):
    msgspec.json.Decoder(_type)
