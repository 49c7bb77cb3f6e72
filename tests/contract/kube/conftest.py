"""The API servers that the contract is held against."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pytest

from journeyman.core.api.objects import NAMESPACE, POD
from journeyman.kube.connection import Connection
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman.ports import KubeStore
from journeyman.simulate.apiserver import ApiServer
from journeyman.simulate.apiserver.http import HttpFront
from journeyman.simulate.clock import VirtualClock

START = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Cluster:
    """One API server under test, a namespace of the test's own, and what no KubeStore can do.

    `bind(pod, node)` assigns a pod as a scheduler does; `compact()` makes the server forget its history;
    `reopen(page_size)` is the same store with smaller pages.
    """

    store: KubeStore
    namespace: str
    bind: Callable[[str, str], None]
    compact: Callable[[], None]
    reopen: Callable[[int], KubeStore]

    def pod(self, name: str, *, labels: dict[str, str] | None = None, owner: Any = None, **spec: Any) -> dict[str, Any]:
        """Create a pod (labelled app=web unless told otherwise); further arguments go into its spec."""
        metadata = {"name": name, "labels": {"app": "web"} if labels is None else labels}
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        containers = [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}]
        body = {"metadata": metadata, "spec": {"containers": containers, **spec}}
        return self.store.create(POD, body, namespace=self.namespace)

    def running_pod(self, name: str, **given: Any) -> dict[str, Any]:
        """A pod on a node, with Ready=True."""
        self.pod(name, **given)
        self.bind(name, "node-1")
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return self.store.patch(POD, name, {"status": ready}, namespace=self.namespace, subresource="status")


Opened = tuple[KubeStore, Callable[[int], KubeStore]]
"""A store, and how to get it with another page size."""


def _in_memory(server: ApiServer) -> Iterator[Opened]:
    yield server, lambda _page_size: server


def _over_http(server: ApiServer) -> Iterator[Opened]:
    with HttpFront(server) as front:
        transport = Transport(Connection(server=front.url))
        yield HttpKubeStore(transport), lambda page_size: HttpKubeStore(transport, page_size=page_size)
        transport.close()


@pytest.fixture(params=[_in_memory, _over_http], ids=["in-memory", "http"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Each API server that the contract holds for; a real kube-apiserver is one more entry."""
    server = ApiServer(VirtualClock(START))
    namespace = f"contract-{next(_numbers)}"
    for store, reopen in request.param(server):
        store.create(NAMESPACE, {"metadata": {"name": namespace}})
        yield Cluster(
            store=store,
            namespace=namespace,
            bind=lambda pod, node: server.bind(namespace, pod, node),
            compact=server.forget_history,
            reopen=reopen,
        )
