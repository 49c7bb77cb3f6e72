"""The simulated API server over HTTP."""

import gzip
import json
import threading
import time
from datetime import datetime, timezone

import pytest
import urllib3

from journeyman.core.api.objects import NODE
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.clock import VirtualClock

START = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
MERGE = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture
def server():
    return ApiServer(VirtualClock(START))


@pytest.fixture
def front(server):
    with HttpApiServer(server) as front:
        yield front


@pytest.fixture
def pool():
    with urllib3.PoolManager(retries=False) as pool:
        yield pool


def test_health_version_and_discovery_answer(front, pool):
    """kubectl and probes request them first."""
    assert pool.request("GET", f"{front.url}/healthz").data == b"ok"
    assert pool.request("GET", f"{front.url}/version").json()["minor"] == "36"
    groups = pool.request("GET", f"{front.url}/apis").json()["groups"]
    assert "karpenter.sh" in {group["name"] for group in groups}
    listed = pool.request("GET", f"{front.url}/apis/karpenter.sh/v1").json()["resources"]
    assert {resource["name"] for resource in listed} == {"nodeclaims", "nodepools"}


def test_a_replacement_carries_its_version(server, front, pool):
    """PUT replaces the object if the version is current."""
    server.create(NODE, {"metadata": {"name": "n", "labels": {"a": "1"}}})
    url = f"{front.url}/api/v1/nodes/n"
    read = pool.request("GET", url).json()
    read["metadata"]["labels"] = {"b": "2"}
    assert pool.request("PUT", url, json=read).json()["metadata"]["labels"] == {"b": "2"}
    assert pool.request("PUT", url, json=read).status == 409


def test_large_answers_are_compressed_when_asked(server, front, pool):
    """The server compresses from 128 KiB on, as kube-apiserver does, and only if the client accepts it."""
    for number in range(200):
        server.create(NODE, {"metadata": {"name": f"n-{number}", "annotations": {"note": "x" * 1000}}})
    url = f"{front.url}/api/v1/nodes"
    plain = pool.request("GET", url)
    packed = pool.request("GET", url, headers={"Accept-Encoding": "gzip"}, decode_content=False)
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == plain.data
    assert len(packed.data) < len(plain.data) / 5


def test_pages_of_a_list_have_one_version_despite_writes(server, front, pool):
    """Objects created or deleted between two pages have no effect; an expired version is 410."""
    for name in ("a", "b", "c", "d"):
        server.create(NODE, {"metadata": {"name": name}})
    first = pool.request("GET", f"{front.url}/api/v1/nodes?limit=2").json()
    assert first["metadata"]["remainingItemCount"] == 2
    server.delete(NODE, "c")
    server.create(NODE, {"metadata": {"name": "bb"}})
    token = first["metadata"]["continue"]
    second = pool.request("GET", f"{front.url}/api/v1/nodes?limit=9&continue={token}").json()
    assert [item["metadata"]["name"] for item in second["items"]] == ["c", "d"]
    assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}
    server.compact_history()
    server.create(NODE, {"metadata": {"name": "e"}})
    assert pool.request("GET", f"{front.url}/api/v1/nodes?limit=9&continue={token}").status == 410


def test_a_watch_delivers_changes_as_they_happen(server, front, pool):
    """A write during the watch is sent immediately, and a bookmark when no write follows."""
    since = server.resource_version
    url = f"{front.url}/api/v1/nodes?watch=1&allowWatchBookmarks=true&timeoutSeconds=5&resourceVersion={since}"
    answer = pool.request("GET", url, preload_content=False)
    threading.Timer(0.2, lambda: server.create(NODE, {"metadata": {"name": "late"}})).start()
    started = time.monotonic()
    lines = answer.stream()
    event = json.loads(next(lines))
    took = time.monotonic() - started
    bookmark = json.loads(next(lines))
    answer.close()
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "late")
    assert 0.1 < took < 1.5
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["resourceVersion"] == server.resource_version


def test_watch_without_a_version_starts_with_all_objects(server, front, pool):
    """With version 0 or none, the watch sends every object as ADDED first."""
    server.create(NODE, {"metadata": {"name": "there"}})
    answer = pool.request("GET", f"{front.url}/api/v1/nodes?watch=true&timeoutSeconds=1")
    events = [json.loads(line) for line in answer.data.splitlines()]
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [("ADDED", "there")]


def test_invalid_bearer_token_is_unauthorized(server, pool):
    """With authentication, the server answers 401 to a missing or wrong token."""
    with HttpApiServer(server, authenticate=lambda token: token == "right") as front:
        url = f"{front.url}/api/v1/nodes"
        assert pool.request("GET", url).status == 401
        assert pool.request("GET", url, headers={"Authorization": "Bearer wrong"}).json()["reason"] == "Unauthorized"
        assert pool.request("GET", url, headers={"Authorization": "Bearer right"}).status == 200


def test_writes_over_http_are_observed_with_the_user_agent(server, front, pool):
    """Observers get the first word of the User-Agent as the user."""
    users = []
    server.on_write(lambda write: users.append(write.user))
    pool.request(
        "POST", f"{front.url}/api/v1/nodes", json={"metadata": {"name": "n"}}, headers={"User-Agent": "cli v1"}
    )
    assert users == ["cli"]
