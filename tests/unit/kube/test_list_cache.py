"""Cached lists over HTTP: a cached list equals a new list, and a failure only causes a new list."""

import json
import random
import time
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from journeyman.core.api.objects import NAMESPACE, NODE, NODEPOOL, POD
from journeyman.errors import GoneError, KubeUnavailableError
from journeyman.kube.caching_store import CachingKubeStore
from journeyman.kube.connection_pool import Connection, client_context
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.list_cache import CachedList, ListCache, ListQuery, resume_watch
from journeyman.kube.request_budget import RequestBudget
from journeyman.kube.transport import LONGEST_QUIET_SECONDS, Transport
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.clock import VirtualClock
from tests.helpers import builders

MANY = 150
QUIET_SECONDS, PREFETCH_SECONDS = 0.2, 60.0  # long enough for a busy machine


class Sandbox:
    """An API server, and a process with a list cache that several runs use."""

    def __init__(self, cache=None):
        self.server = ApiServer(VirtualClock(datetime(2026, 3, 1, tzinfo=timezone.utc)))
        self.server.load([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}])
        self.front = HttpApiServer(self.server)
        self.transport = Transport(Connection(server=self.front.url))
        self.direct = HttpKubeStore(self.transport)
        self.cache = cache or ListCache()
        self.store = CachingKubeStore(
            self.direct, self.cache, cluster="c", quiet_seconds=QUIET_SECONDS, prefetch_seconds=PREFETCH_SECONDS
        )
        self.budget = RequestBudget()

    def run(self, purpose="provision"):
        self.budget = RequestBudget()
        return self.store.for_run(self.budget, purpose)

    def add(self, *names, kind=POD, **changes):
        for name in names:
            body = builders.pod_body(name, **changes) if kind is POD else {"metadata": {"name": name}}
            self.server.create(kind, body, namespace="default" if kind is POD else "")

    def close(self):
        self.transport.close()
        self.front.close()


@pytest.fixture
def sandbox():
    made = Sandbox()
    made.add(*(f"pod-{n:03d}" for n in range(MANY)))
    yield made
    made.close()


def wait_until(is_so):
    until = time.monotonic() + 10
    while not is_so() and time.monotonic() < until:
        time.sleep(0.01)
    assert is_so()


def names(listing):
    return [item.metadata.name for item in listing.items]


def test_second_run_reads_only_changes(sandbox):
    """It reads added, changed and deleted pods; an unchanged pod is the same object, for caches by identity."""
    first = sandbox.run().list(POD)
    whole = sandbox.budget.usage
    sandbox.add("another")
    sandbox.server.patch(POD, "pod-007", {"metadata": {"labels": {"seen": "yes"}}}, namespace="default")
    sandbox.server.delete(POD, "pod-008", namespace="default", grace_period_seconds=0)

    second = sandbox.run().list(POD)

    assert second.items == sandbox.direct.list(POD).items
    kept = {pod.metadata.name: pod for pod in first.items}
    assert sum(pod is kept.get(pod.metadata.name) for pod in second.items) == MANY - 2
    assert sandbox.budget.usage.received_bytes < whole.received_bytes / 10
    assert sandbox.budget.usage.requests == 2

    assert sandbox.run().list(POD).items == second.items
    assert sandbox.budget.usage.requests == 1  # the store is at the cached version, so no watch is needed


def test_cached_list_equals_a_fresh_list_after_random_changes(sandbox):
    draw = random.Random(7)
    for _ in range(8):
        for _ in range(draw.randrange(12)):
            name = f"pod-{draw.randrange(MANY):03d}"
            exists = name in names(sandbox.server.list(POD))
            if exists and draw.random() < 0.4:
                sandbox.server.delete(POD, name, namespace="default", grace_period_seconds=0)
            elif exists:
                label = {"metadata": {"labels": {"team": draw.choice("ab")}}}
                sandbox.server.patch(POD, name, label, namespace="default")
            else:
                sandbox.add(name)
        run = sandbox.run()
        for selection in ({}, {"label_selector": "team!=a"}, {"field_selector": "spec.nodeName="}):
            assert run.list(POD, **selection).items == sandbox.direct.list(POD, **selection).items, selection


def test_run_reads_its_own_writes(sandbox):
    """The same holds for a list that was read ahead before the write."""
    sandbox.add(*(f"node-{n:03d}" for n in range(MANY)), kind=NODE)
    warm_up = sandbox.run()
    warm_up.list(NODE)
    warm_up.list(POD)

    run = sandbox.run()
    run.list(NODE)  # the pods are being read ahead, too
    run.delete(POD, "pod-000", namespace="default", grace_period_seconds=0)

    assert "pod-000" not in names(run.list(POD))


def test_first_list_of_a_run_reads_all_lists_of_its_step_ahead(sandbox):
    """Large and small ones, in parallel, but not those that the last run did not read, nor lists of one node."""
    sandbox.add(*(f"node-{n:03d}" for n in range(MANY)), kind=NODE)
    first = sandbox.run()
    for kind in (NODE, NODEPOOL, NAMESPACE, POD):
        first.list(kind)
    first.list(POD, field_selector="spec.nodeName=node-001")
    sandbox.run("sweep").list(NODE)

    sandbox.run("sweep").list(NODE)
    assert sandbox.budget.usage.requests == 1
    run = sandbox.run()
    run.list(NODE)
    wait_until(lambda: sandbox.budget.usage.requests == 4)
    for kind in (NODEPOOL, NAMESPACE, POD):
        assert run.list(kind).items == sandbox.direct.list(kind).items
    assert sandbox.budget.usage.requests == 4
    run.list(POD)
    assert sandbox.budget.usage.requests == 5  # a list that was read ahead is used once


def test_list_that_was_read_ahead_expires(sandbox):
    """A run that lists later gets the current state."""
    store = CachingKubeStore(sandbox.direct, sandbox.cache, quiet_seconds=QUIET_SECONDS, prefetch_seconds=0.5)
    for _ in range(2):
        run = store.for_run(RequestBudget())
        run.list(NAMESPACE)
        run.list(POD)

    run = store.for_run(RequestBudget())
    run.list(NAMESPACE)
    time.sleep(0.5)
    sandbox.add("another")
    assert "another" in names(run.list(POD))


def test_new_cluster_of_the_same_name_is_not_read_from_the_cache(sandbox):
    """That holds even at the same address and version, because its objects have other UIDs."""
    sandbox.run().list(POD)
    other = Sandbox(sandbox.cache)
    try:
        other.add(*(f"pod-{n:03d}" for n in reversed(range(MANY))))
        assert sandbox.server.list(POD).resource_version == other.server.list(POD).resource_version
        assert other.run().list(POD).items == other.direct.list(POD).items

        port = int(sandbox.front.url.rpartition(":")[2])
        sandbox.front.close()
        sandbox.transport.close()
        sandbox.front = HttpApiServer(other.server, port=port)
        assert sandbox.run().list(POD).items == other.direct.list(POD).items
    finally:
        other.close()


def test_cluster_identity_is_its_address_and_authority(make_certificate):
    """A new connection to the same cluster has the same identity."""

    def identity(server, authority):
        return Transport(Connection(server=server, ssl_context=client_context(ca_file=str(authority)))).identity

    (one, _), (two, _) = make_certificate(), make_certificate()
    assert identity("https://k:6443", one) == identity("https://k:6443/", one)
    assert len({identity(server, ca) for server in ("https://k:6443", "https://l:6443") for ca in (one, two)}) == 4


def test_small_lists_and_raw_objects_are_not_cached(sandbox):
    """A watch costs a connection; callers could change raw objects."""
    sandbox.add("n", kind=NODE)
    for _ in range(2):
        run = sandbox.run()
        run.list(NODE)
        run.list(NODEPOOL)
        assert sandbox.budget.usage.requests == 2
    assert sandbox.store.cached_list(ListQuery(NODE)) is None


@pytest.mark.parametrize(("smallest", "is_cached"), [(MANY, True), (MANY + 1, False)])
def test_list_is_cached_from_a_size_on(sandbox, smallest, is_cached):
    store = CachingKubeStore(sandbox.direct, ListCache(min_objects=smallest))
    store.list(POD)
    assert (store.cached_list(ListQuery(POD)) is not None) == is_cached


@pytest.mark.parametrize(("most", "keeps_both"), [(2 * MANY, True), (2 * MANY - 1, False)])
def test_list_cache_is_bounded(most, keeps_both):
    """The bound is for all clusters; the least recently used list is removed first."""
    cache = ListCache(max_objects=most)
    one, two = Sandbox(cache), Sandbox(cache)
    try:
        for sandbox in (one, two):
            sandbox.add(*(f"pod-{n:03d}" for n in range(MANY)))
        one.store.list(POD)
        two.store.list(POD)

        assert (one.store.cached_list(ListQuery(POD)) is not None) == keeps_both
        assert len(two.store.cached_list(ListQuery(POD)).objects) == MANY
    finally:
        one.close()
        two.close()


def test_unreachable_api_server_is_an_error_and_not_a_stale_list(sandbox):
    """Once the server is back, lists are read again, also if it no longer has the events since the cached version (410)."""
    sandbox.run().list(POD)
    port = int(sandbox.front.url.rpartition(":")[2])
    sandbox.front.close()
    sandbox.transport.close()
    with pytest.raises(KubeUnavailableError):
        sandbox.run().list(POD)
    sandbox.front = HttpApiServer(sandbox.server, port=port)
    sandbox.add("another")
    sandbox.server.compact_history()
    assert sandbox.run().list(POD).items == sandbox.direct.list(POD).items


# The following tests use scripted responses, because a real server cannot be made to respond so.


def add_list(script, version, *items, count=0, **status):
    """Add the response to a list, or to a list that is limited to one of `count` objects."""
    more = {"continue": "more", "remainingItemCount": count - len(items)} if count > len(items) else {}
    script.add_response(200, {"metadata": {"resourceVersion": version, **more}, "items": items})


def pod(name, version, **labels):
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version, "labels": labels}}


def add_watch(script, *events, whole=True):
    """Add the response to a watch: events of pods; unless `whole` it breaks off within the last one."""
    lines = b"".join(json.dumps({"type": kind, "object": body}).encode() + b"\n" for kind, body in events)
    lines = lines if whole else lines[:-20]
    chunk = b"%x\r\n%b\r\n" % (len(lines), lines) if lines else b""
    if whole:
        script.add_response(200, chunk + b"0\r\n\r\n", Transfer_Encoding="chunked")
    else:
        script.add_response(200, chunk, Transfer_Encoding="chunked", Connection="close")


def request_kinds(script):
    words = [path.partition("?")[2].partition("&")[0] for _, path, _ in script.requests]
    return [{"limit=1": "first", "watch=1": "watch"}.get(word, "list") for word in words]


@pytest.fixture
def scripted(script):
    """Return a caching store for the scripted responses, which caches lists of any size, and its log."""
    log = []
    transport = Transport(Connection(server=script.url))
    store = CachingKubeStore(
        HttpKubeStore(transport),
        ListCache(min_objects=0),
        cluster="c",
        quiet_seconds=QUIET_SECONDS,
        log=lambda level, message, **fields: log.append((level, message, fields)),
    )
    yield SimpleNamespace(list=lambda: store.for_run(RequestBudget()).list(POD), log=log)
    transport.close()


def test_watch_that_breaks_in_an_object_is_discarded(script, scripted):
    add_list(script, "7", pod("a", "7"), pod("b", "7"))
    add_list(script, "9", pod("a", "8"), count=2)
    add_watch(script, ("MODIFIED", pod("a", "8", half="said")), whole=False)
    add_list(script, "9", pod("b", "7"))

    assert names(scripted.list()) == ["a", "b"]
    assert names(scripted.list()) == ["b"]
    assert request_kinds(script) == ["list", "first", "watch", "list"]


def test_versions_that_are_not_numbers_are_compared_for_equality(script, scripted):
    """Their order is unknown, so the watch ends after the quiet time."""
    add_list(script, "x1", pod("a", "x1"))
    add_list(script, "x2", pod("a", "x1"))
    add_watch(script, ("MODIFIED", pod("a", "x3", new="yes")))

    scripted.list()
    (found,) = scripted.list().items
    assert found.metadata.labels == {"new": "yes"}


@pytest.mark.parametrize(
    ("before", "sample", "count", "events", "labels"),
    [
        (  # the first later event ends the watch, and the next watch reads it
            [pod("a", "7"), pod("b", "7")],
            [pod("a", "7")],
            2,
            [("MODIFIED", pod("b", "8", new="yes")), ("DELETED", pod("a", "11"))],
            {"a": {}, "b": {"new": "yes"}},
        ),
        # new lists are in order of namespace and name, too; events come in the order of the changes
        ([pod("a", "7"), pod("c", "7")], [pod("a", "7")], 3, [("ADDED", pod("b", "9"))], {"a": {}, "b": {}, "c": {}}),
        ([pod("a", "7")], [], 0, [("DELETED", pod("a", "9"))], {}),
    ],
    ids=["changed", "added", "empty"],
)
def test_cached_list_is_that_of_the_samples_version(script, scripted, before, sample, count, events, labels):
    """It is not listed again. The watch uses the sample's connection, as another API server may not have that version yet."""
    add_list(script, "7", *before)
    add_list(script, "9", *sample, count=count)
    add_watch(script, *events)

    scripted.list()
    found = scripted.list()
    assert [(one.metadata.name, one.metadata.labels) for one in found.items] == list(labels.items())
    assert found.resource_version == "9"
    assert request_kinds(script) == ["list", "first", "watch"]
    assert script.ports[1] == script.ports[2] != script.ports[0]


@pytest.mark.parametrize(("quiet", "silences"), [(0.2, [0.2, LONGEST_QUIET_SECONDS]), (2.0, [2.0, 2.0])])
def test_second_watch_waits_longer_for_a_late_event(quiet, silences):
    """A watch that ended by its silence was too short for a busy server; the second silence is never the shorter one."""
    asked = []

    class BusyStore:
        transport = SimpleNamespace(
            request=lambda *_, **__: json.dumps({"metadata": {"resourceVersion": "9"}, "items": [pod("b", "9")]})
        )

        def watch(self, *_, quiet_seconds, **__):
            asked.append(quiet_seconds)
            return iter(())

    cached = CachedList(query=ListQuery(POD), objects={}, version="7", listed_at=time.time())
    with pytest.raises(GoneError):
        resume_watch(BusyStore(), cached, quiet)
    assert asked == silences


def test_late_event_is_noticed_by_the_object_count(script, scripted):
    """If the quiet time was too short, the next one is longer."""
    add_list(script, "7", pod("a", "7"))
    for late in ((), (("ADDED", pod("b", "9")),)):
        add_list(script, "9", pod("a", "7"), count=2)
        add_watch(script, *late)

    scripted.list()
    assert names(scripted.list()) == ["a", "b"]
    assert request_kinds(script) == ["list", "first", "watch", "first", "watch"]


@pytest.mark.parametrize(
    ("version", "sample", "count", "watches"),
    [
        ("9", pod("a", "7"), 3, 2),  # more objects than the cache has
        ("9", pod("z", "7"), 2, 2),  # an object that the cache does not have
        ("9", pod("a", "8"), 2, 2),  # an object that the cache has in another version
        ("5", pod("a", "4"), 2, 0),  # an older version, as after a restore
    ],
)
def test_cached_list_that_does_not_match_is_listed_again(script, scripted, version, sample, count, watches):
    """That happens after the second mismatch, or at once if the server's version is older."""
    add_list(script, "7", pod("a", "7"), pod("b", "7"))
    for _ in range(watches or 1):
        add_list(script, version, sample, count=count)
        if watches:
            add_watch(script)
    add_list(script, version, sample)

    scripted.list()
    assert names(scripted.list()) == [sample["metadata"]["name"]]
    assert request_kinds(script).count("watch") == watches


def test_forbidden_watch_reads_whole_lists_and_warns_once(script, scripted):
    """An identity without the watch verb is supported."""
    why = 'pods is forbidden: User "ci" cannot watch resource "pods" in API group "" at the cluster scope'
    add_list(script, "7", pod("a", "7"))
    add_list(script, "9", pod("a", "7"), count=2)
    script.add_response(403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": why})
    add_list(script, "9", pod("a", "7"), pod("b", "9"))

    assert [names(scripted.list()) for _ in range(4)] == [["a"], ["a", "b"], ["a", "b"], ["a", "b"]]
    assert request_kinds(script) == ["list", "first", "watch", "list", "list", "list"]
    ((level, message, fields),) = scripted.log
    assert (level, fields["cluster"], fields["kind"], fields["verb"]) == ("warning", "c", "Pod", "watch")
    assert why in message
    assert "helm upgrade" in fields["to_do"]
