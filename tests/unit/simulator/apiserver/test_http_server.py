"""The HTTP server: behaviour of the wire protocol."""

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
    """What kubectl and probes ask first."""
    assert pool.request("GET", f"{front.url}/healthz").data == b"ok"
    assert pool.request("GET", f"{front.url}/version").json()["minor"] == "36"
    groups = pool.request("GET", f"{front.url}/apis").json()["groups"]
    assert "karpenter.sh" in {group["name"] for group in groups}
    listed = pool.request("GET", f"{front.url}/apis/karpenter.sh/v1").json()["resources"]
    assert {resource["name"] for resource in listed} == {"nodeclaims", "nodepools"}


def test_a_replacement_carries_its_version(server, front, pool):
    """PUT replaces what it may, under the version it read."""
    server.create(NODE, {"metadata": {"name": "n", "labels": {"a": "1"}}})
    url = f"{front.url}/api/v1/nodes/n"
    read = pool.request("GET", url).json()
    read["metadata"]["labels"] = {"b": "2"}
    assert pool.request("PUT", url, json=read).json()["metadata"]["labels"] == {"b": "2"}
    assert pool.request("PUT", url, json=read).status == 409


def test_large_answers_are_compressed_when_asked(server, front, pool):
    """From 128 KiB on, as kube-apiserver does; never unasked."""
    for number in range(200):
        server.create(NODE, {"metadata": {"name": f"n-{number}", "annotations": {"note": "x" * 1000}}})
    url = f"{front.url}/api/v1/nodes"
    plain = pool.request("GET", url)
    packed = pool.request("GET", url, headers={"Accept-Encoding": "gzip"}, decode_content=False)
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == plain.data
    assert len(packed.data) < len(plain.data) / 5


def test_pages_show_one_version_while_the_world_goes_on(server, front, pool):
    """Objects made or removed between two pages do not appear or disappear; a forgotten version is 410."""
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
    """A write during the watch arrives at once, a bookmark in the quiet after it."""
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


def test_a_watch_without_a_version_begins_with_what_there_is(server, front, pool):
    """Version 0 or none: every object comes as ADDED first."""
    server.create(NODE, {"metadata": {"name": "there"}})
    answer = pool.request("GET", f"{front.url}/api/v1/nodes?watch=true&timeoutSeconds=1")
    events = [json.loads(line) for line in answer.data.splitlines()]
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [("ADDED", "there")]


def test_strangers_stay_out(server, pool):
    """With authentication on, a missing or wrong bearer token is 401."""
    with HttpApiServer(server, authenticate=lambda token: token == "right") as front:
        url = f"{front.url}/api/v1/nodes"
        assert pool.request("GET", url).status == 401
        assert pool.request("GET", url, headers={"Authorization": "Bearer wrong"}).json()["reason"] == "Unauthorized"
        assert pool.request("GET", url, headers={"Authorization": "Bearer right"}).status == 200


def test_writes_over_http_are_observed_with_the_user_agent(server, front, pool):
    """The first word of the User-Agent says who wrote."""
    users = []
    server.on_write(lambda write: users.append(write.user))
    pool.request(
        "POST", f"{front.url}/api/v1/nodes", json={"metadata": {"name": "n"}}, headers={"User-Agent": "cli v1"}
    )
    assert users == ["cli"]
