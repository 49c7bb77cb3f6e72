"""Measures one way of reading a cluster in a separate process, without memory or connections of another reading.

    python -m tests.bench.readings official|json|ours|snapshot SERVER CA_FILE TOKEN

Prints one line of JSON: elapsed seconds and CPU seconds of this process, both without imports, and its peak memory.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGED = 50
WARM_RUNS = 9


def official(server: str, ca_file: str, token: str) -> dict[str, Any]:
    """List all pods with the official client's typed list."""
    from kubernetes import client

    configuration = client.Configuration(host=server)
    configuration.ssl_ca_cert = ca_file
    configuration.api_key = {"authorization": f"Bearer {token}"}
    core = client.CoreV1Api(client.ApiClient(configuration))
    core.list_namespace()  # opens the connection
    return _listed(core.list_pod_for_all_namespaces)


def ours(server: str, ca_file: str, token: str) -> dict[str, Any]:
    """List all pods as Journeyman does."""
    from journeyman.core.api.objects import NAMESPACE, POD
    from journeyman.kube.http_store import HttpKubeStore
    from journeyman.runtime.collector import collect_rarely

    collect_rarely()  # as every sandbox does
    store = HttpKubeStore(_transport(server, ca_file, token))
    store.list(NAMESPACE)
    return _listed(lambda: store.list(POD))


def json_pages(server: str, ca_file: str, token: str) -> dict[str, Any]:
    """List all pods page by page in JSON, for comparison with protobuf."""
    from msgspec.structs import replace

    from journeyman.core.api.objects import NAMESPACE, POD, Pod
    from journeyman.kube.http_store import HttpKubeStore
    from journeyman.runtime.collector import collect_rarely

    class JsonPod(Pod, frozen=True):
        """A pod type that the client lists in JSON."""

    collect_rarely()  # as every sandbox does
    store = HttpKubeStore(_transport(server, ca_file, token))
    store.list(NAMESPACE)
    return _listed(lambda: store.list(replace(POD, type=JsonPod)))


def _listed(call: Callable[[], Any]) -> dict[str, Any]:
    base, began = peak_bytes(), time.process_time()
    seconds, listed = timed(call)
    cpu = time.process_time() - began
    return {"pods": len(listed.items), "seconds": seconds, "cpu": cpu, "base": base, "peak": peak_bytes()}


def snapshot(server: str, ca_file: str, token: str) -> dict[str, Any]:
    """Load whole snapshots as steps do: one cold, then warm ones, with some changed pods before each.

    `costs` has the requests, bytes and CPU time of each scope of `steps.load`, cold and warm.
    """
    from journeyman.core.api.objects import POD
    from journeyman.kube.http_store import HttpKubeStore
    from journeyman.runtime.collector import collect_rarely
    from journeyman.steps import load as loading

    collect_rarely()  # as every sandbox does
    transport = _transport(server, ca_file, token)
    rows: dict[str, dict[str, Any]] = {}
    scopes = {"everything": loading.EVERYTHING, "fleet": loading.NODES_AND_CLAIMS, "glance": loading.SWEEP_SCOPE}
    writer = HttpKubeStore(transport)
    pods = [pod.metadata for pod in writer.list(POD).items]
    for name, scope in scopes.items():
        load = _loader(_transport(server, ca_file, token), scope)
        cold, *warm = [_after_changes(load, writer, pods, changed=bool(run) * CHANGED) for run in range(WARM_RUNS + 1)]
        middle = sorted(warm, key=lambda row: row["seconds"])[len(warm) // 2]
        rows[name] = {"cold": cold, "warm": middle, "best": min(row["seconds"] for row in warm)}
    return {"scopes": rows, "peak": peak_bytes()}


def _loader(transport: Any, scope: Any) -> Callable[[], dict[str, Any]]:
    """Return a function that loads a snapshot in a new run, as warm sandboxes do, and returns its cost."""
    from journeyman.kube.caching_store import CachingKubeStore
    from journeyman.kube.http_store import HttpKubeStore
    from journeyman.kube.list_cache import ListCache
    from journeyman.kube.request_budget import RequestBudget
    from journeyman.steps.load import load
    from tests.helpers.fakes import Cluster

    kept = CachingKubeStore(HttpKubeStore(transport), ListCache(), cluster="bench")
    cluster = Cluster()

    def loaded() -> dict[str, Any]:
        budget = RequestBudget()
        run = cluster.run(store=kept.for_run(budget, "provision"))
        began = time.process_time()
        seconds, found = timed(lambda: load(run, scope))
        usage = budget.usage
        return {
            "seconds": seconds,
            "cpu": time.process_time() - began,
            "requests": usage.requests,
            "sent": usage.sent_bytes,
            "received": usage.received_bytes,
            "nodes": len(found.nodes),
            "pods": len(found.pods),
        }

    return loaded


def _after_changes(load: Callable[[], dict[str, Any]], writer: Any, pods: list[Any], *, changed: int) -> dict[str, Any]:
    from journeyman.core.api.objects import POD

    for meta in random.sample(pods, changed):
        patch = {"metadata": {"annotations": {"changed": str(random.random())}}}
        writer.patch(POD, meta.name, patch, namespace=meta.namespace)
    return load()


def _transport(server: str, ca_file: str, token: str) -> Any:
    from journeyman.kube.connection_pool import Connection, client_context
    from journeyman.kube.transport import Transport

    trust = client_context(ca_file=ca_file)
    return Transport(Connection(server=server, ssl_context=trust, authorization=lambda: f"Bearer {token}"))


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call and its result."""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def peak_bytes() -> int:
    """Return this process's peak memory so far (on Linux, rusage of a child includes its parent's memory)."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


READINGS = {"official": official, "json": json_pages, "ours": ours, "snapshot": snapshot}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(READINGS[sys.argv[1]](*sys.argv[2:])) + "\n")
