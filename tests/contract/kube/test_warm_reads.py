"""Cached lists on the real API server: versions, watches and expiry as `kube.list_cache` expects."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING

import pytest

from journeyman.core.api.objects import NAMESPACE, POD
from journeyman.kube.access.kubeconfig import from_kubeconfig
from journeyman.kube.caching_store import CachingKubeStore
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.list_cache import ListCache
from journeyman.kube.request_budget import RequestBudget
from journeyman.kube.transport import Transport

if TYPE_CHECKING:
    from tests.controlplane.plane import ControlPlane

pytestmark = pytest.mark.xdist_group("control-plane")
QUIET_SECONDS = 1.0  # for a busy machine
CONTAINER = {"name": "main", "image": "registry.example.com/app:1"}


@pytest.fixture
def direct(control_plane: ControlPlane) -> Iterator[HttpKubeStore]:
    """Return a store that reads everything each time."""
    transport = Transport(from_kubeconfig(str(control_plane.kubeconfig)))
    yield HttpKubeStore(transport)
    transport.close()


def test_cached_list_equals_a_fresh_list(direct: HttpKubeStore, namespace: str) -> None:
    """It has creations, changes and deletions; the last change is of another kind, so this watch gets no event for it."""
    for number in range(5):
        direct.create(
            POD, {"metadata": {"name": f"p{number}"}, "spec": {"containers": [CONTAINER]}}, namespace=namespace
        )
    kept = CachingKubeStore(direct, ListCache(min_objects=0), quiet_seconds=QUIET_SECONDS)
    first = kept.for_run(RequestBudget()).list(POD, namespace=namespace)

    direct.create(POD, {"metadata": {"name": "p9"}, "spec": {"containers": [CONTAINER]}}, namespace=namespace)
    direct.patch(POD, "p3", {"metadata": {"labels": {"seen": "yes"}}}, namespace=namespace)
    direct.delete(POD, "p4", namespace=namespace, grace_period_seconds=0)
    direct.patch(NAMESPACE, namespace, {"metadata": {"labels": {"last": "change"}}})
    budget = RequestBudget()
    second = kept.for_run(budget).list(POD, namespace=namespace)

    assert second.items == direct.list(POD, namespace=namespace).items
    assert [pod.metadata.name for pod in second.items] == ["p0", "p1", "p2", "p3", "p9"]
    assert second.items[0] is first.items[0]
    assert budget.usage.requests == 2


def test_cached_list_is_what_the_server_had_at_its_version(direct: HttpKubeStore, namespace: str) -> None:
    """During constant writes it equals an exact list at its version, which is not older than the read."""
    kept = CachingKubeStore(direct, ListCache(min_objects=0), quiet_seconds=QUIET_SECONDS)
    kept.for_run(RequestBudget()).list(POD, namespace=namespace)
    with _writing(direct, namespace) as written:
        for _ in range(10):
            before = written[-1] if written else 0
            budget = RequestBudget()
            warm = kept.for_run(budget).list(POD, namespace=namespace)
            exact = _exactly(direct, namespace, warm.resource_version)
            assert [(p.metadata.uid, p.metadata.resource_version) for p in warm.items] == exact
            assert int(warm.resource_version) >= before
            assert budget.usage.requests <= 2  # the cache never fell back to a full list
            time.sleep(0.02)


@contextmanager
def _writing(direct: HttpKubeStore, namespace: str) -> Iterator[list[int]]:
    """Create, change and delete pods in a thread inside the context; yield the versions of the writes."""
    written: list[int] = []
    done = threading.Event()

    def write() -> None:
        for number in count():
            pod = {"metadata": {"name": f"p{number}"}, "spec": {"containers": [CONTAINER]}}
            label = {"metadata": {"labels": {"number": str(number)}}}
            created = direct.create(POD, pod, namespace=namespace)
            patched = direct.patch(POD, f"p{max(number - 5, 0)}", label, namespace=namespace)
            written.append(max(int(made["metadata"]["resourceVersion"]) for made in (created, patched)))
            if number >= 10:
                direct.delete(POD, f"p{number - 10}", namespace=namespace, grace_period_seconds=0)
            if done.wait(0.005):
                return

    with ThreadPoolExecutor(1) as thread:
        writer = thread.submit(write)
        try:
            yield written
        finally:
            done.set()
        writer.result()


def _exactly(direct: HttpKubeStore, namespace: str, version: str) -> list[tuple[str, str]]:
    query = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
    listed = json.loads(direct.transport.request("GET", POD.path(namespace), query=query))
    found = [item["metadata"] for item in listed["items"]]
    return [(m["uid"], m["resourceVersion"]) for m in sorted(found, key=itemgetter("name"))]
