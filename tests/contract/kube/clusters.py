"""The API servers on which the contract tests run, with a common interface.

`in_memory` is the simulator's API server, called directly; `over_http` is the same behind its HTTP server, called by the real
client; `kubernetes` is kube-apiserver with kube-controller-manager, called by the same client.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import urllib3
from msgspec import Struct

from journeyman.core.api.objects import NAMESPACE, NODE, NODECLAIM, NODEPOOL, PDB, POD
from journeyman.kube.access.kubeconfig import from_kubeconfig
from journeyman.kube.connection_pool import Connection
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman.ports import KubeStore
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.workload_controllers import WorkloadControllers
from tests.helpers.waiting import wait_until

if TYPE_CHECKING:
    from tests.controlplane.plane import ControlPlane

START = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
MERGE_PATCH = "application/merge-patch+json"
CLASS_REF = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}


class Answer(Struct, frozen=True):
    """An HTTP response; the body is decoded if it is JSON."""

    status: int
    body: Any
    headers: Mapping[str, str]


class Wire:
    """Plain HTTP requests, for tests of details that the client hides."""

    def __init__(self, connection: Connection) -> None:
        trust = {"ssl_context": connection.ssl_context} if connection.ssl_context is not None else {}
        self._pool = urllib3.PoolManager(retries=False, timeout=30, **trust)
        self._connection = connection

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: Any
    ) -> Answer:
        """Send one request; the body is sent as JSON, or unchanged if it is bytes."""
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        if authorization := self._connection.authorization():
            headers["Authorization"] = authorization
        url = f"{self._connection.server.rstrip('/')}{path}?{urlencode(query)}"
        content = body if isinstance(body, bytes) or body is None else json.dumps(body)
        reply = self._pool.request(method, url, body=content, headers=headers)
        is_json = reply.headers.get("Content-Type", "").startswith("application/json")
        return Answer(reply.status, json.loads(reply.data) if is_json else reply.data.decode(), dict(reply.headers))

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()


class Cluster(Struct, frozen=True, kw_only=True):
    """One API server under test with a namespace for the test, and operations that a KubeStore does not have.

    Attributes:
        name: in-memory, http or kubernetes.
        store: The KubeStore under test.
        namespace: The test's namespace; names of cluster-wide objects contain it too (`own`).
        bind: Binds a pod to a node, as a scheduler does.
        compact: Removes the server's watch history.
        reopen: Returns the same store with another page size.
        controllers: Runs the simulated controllers until they have nothing to do; a real cluster's run by themselves.
        wire: Sends plain HTTP requests; None without an HTTP server.
    """

    name: str
    store: KubeStore
    namespace: str
    bind: Callable[[str, str], None]
    compact: Callable[[], None]
    reopen: Callable[[int], KubeStore]
    controllers: Callable[[], None]
    wire: Wire | None = None

    @property
    def http(self) -> Wire:
        """Return `wire`; only for tests that require an HTTP server."""
        assert self.wire is not None
        return self.wire

    def own(self, name: str) -> str:
        """Return a name for a cluster-wide object that is unique to the test."""
        return f"{name}-{self.namespace}"

    def eventually(self, condition: Callable[[], bool]) -> None:
        """Return as soon as the controllers have made the condition true; fail the test if they do not."""
        self.controllers()
        if self.name == "kubernetes":
            wait_until(condition, "Kubernetes' controllers have not made it so")
        else:
            assert condition(), "the simulated controllers are done, and it is not so"

    # -- objects ------------------------------------------------------------------------------------------------

    def claim(self, name: str, spec: Mapping[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
        """Create a NodeClaim called `own(name)`."""
        body = {"metadata": {"name": self.own(name), **metadata}, "spec": {**a_claim_spec(), **(spec or {})}}
        return self.store.create(NODECLAIM, body)

    def pool(self, name: str, **spec: Any) -> dict[str, Any]:
        """Create a NodePool called `own(name)`; further arguments go into its spec."""
        template = {"spec": {"requirements": [], "nodeClassRef": CLASS_REF}}
        return self.store.create(
            NODEPOOL, {"metadata": {"name": self.own(name)}, "spec": {"template": template, **spec}}
        )

    def node(self, name: str = "node", **status: Any) -> str:
        """Create a Node called `own(name)` unless it exists; return its name."""
        own = self.own(name)
        if all(node.metadata.name != own for node in self.store.list(NODE).items):
            self.store.create(NODE, {"metadata": {"name": own}, "status": status})
        return own

    def pod(self, name: str, *, labels: dict[str, str] | None = None, owner: Any = None, **spec: Any) -> dict[str, Any]:
        """Create a pod (labelled app=web by default); further arguments go into its spec."""
        metadata = {"name": name, "labels": {"app": "web"} if labels is None else labels}
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        return self.store.create(
            POD, {"metadata": metadata, "spec": {**a_pod_spec(), **spec}}, namespace=self.namespace
        )

    def running_pod(self, name: str, **given: Any) -> dict[str, Any]:
        """Create a pod on a node, with Ready=True."""
        self.pod(name, **given)
        return self.run_pod(name)

    def run_pod(self, name: str, *, ready: bool = True) -> dict[str, Any]:
        """Bind a pod to a node, unless it is bound, and set its phase to Running."""
        if not self.store.get(POD, name, namespace=self.namespace).spec.node_name:
            self.bind(name, self.node())
        conditions = [{"type": "Ready", "status": str(ready)}]
        return self.pod_status(name, phase="Running", conditions=conditions)

    def pod_status(self, name: str, **status: Any) -> dict[str, Any]:
        """Write a pod's status, as its kubelet does."""
        return self.store.patch(POD, name, {"status": status}, namespace=self.namespace, subresource="status")

    def budget(self, name: str = "budget", **spec: Any) -> dict[str, Any]:
        """Create a PodDisruptionBudget for app=web."""
        body = {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}
        return self.store.create(PDB, body, namespace=self.namespace)

    def pods(self, **selectors: Any) -> list[str]:
        """Return the names of the test's pods."""
        return names(self.store.list(POD, namespace=self.namespace, **selectors))


def a_claim_spec() -> dict[str, Any]:
    """Return a NodeClaim's spec with the required fields and a requirement."""
    return {
        "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}],
        "nodeClassRef": CLASS_REF,
        "expireAfter": "720h",
    }


def a_pod_spec() -> dict[str, Any]:
    """Return a pod's spec with one container that requests one CPU."""
    return {"containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}]}


def names(listing: Any) -> list[str]:
    """Return the names in a listing of Structs, in its order."""
    return [item.metadata.name for item in listing.items]


# -- the three kinds ----------------------------------------------------------------------------------------------------


@contextmanager
def in_memory() -> Iterator[Cluster]:
    """Return the simulator's API server, called directly."""
    server = ApiServer(VirtualClock(START))
    with _with_namespace(server) as namespace:
        yield _simulated("in-memory", server, server, namespace, lambda _page_size: server)


@contextmanager
def over_http() -> Iterator[Cluster]:
    """Return the simulator's API server, called over HTTP."""
    server = ApiServer(VirtualClock(START))
    with HttpApiServer(server) as front, _client(Connection(server=front.url)) as (transport, wire):
        store = HttpKubeStore(transport)
        with _with_namespace(store) as namespace:
            yield _simulated(
                "http", server, store, namespace, lambda size: HttpKubeStore(transport, page_size=size), wire
            )


@contextmanager
def kubernetes(plane: ControlPlane) -> Iterator[Cluster]:
    """Return kube-apiserver; a test's cluster-wide objects stay until the control plane ends."""
    with _client(from_kubeconfig(str(plane.kubeconfig))) as (transport, wire):
        store = HttpKubeStore(transport)
        with _with_namespace(store) as namespace:

            def bind(pod: str, node: str) -> None:
                body = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": node}}
                binding = {**body, "metadata": {"name": pod, "namespace": namespace}}
                transport.request("POST", POD.path(namespace, pod, "binding"), body=json.dumps(binding).encode())

            yield Cluster(
                name="kubernetes",
                store=store,
                namespace=namespace,
                bind=bind,
                compact=plane.compact_history,
                reopen=lambda size: HttpKubeStore(transport, page_size=size),
                controllers=lambda: None,
                wire=wire,
            )


def _simulated(
    name: str,
    server: ApiServer,
    store: KubeStore,
    namespace: str,
    reopen: Callable[[int], KubeStore],
    wire: Wire | None = None,
) -> Cluster:
    workloads = WorkloadControllers(server, VirtualClock(START))

    def run_until_idle() -> None:
        while workloads.act():
            pass

    return Cluster(
        name=name,
        store=store,
        namespace=namespace,
        bind=lambda pod, node: server.bind(namespace, pod, node),
        compact=server.compact_history,
        reopen=reopen,
        controllers=run_until_idle,
        wire=wire,
    )


@contextmanager
def _client(connection: Connection) -> Iterator[tuple[Transport, Wire]]:
    transport, wire = Transport(connection), Wire(connection)
    try:
        yield transport, wire
    finally:
        transport.close()
        wire.close()


@contextmanager
def _with_namespace(store: KubeStore) -> Iterator[str]:
    name = f"contract-{secrets.token_hex(4)}"
    store.create(NAMESPACE, {"metadata": {"name": name}})
    yield name
