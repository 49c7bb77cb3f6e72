"""Warm reads over real HTTP: a cached list equals a fresh list, and a failure costs only a new list."""

import json
import random
import time
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from journeyman.core.api.objects import NAMESPACE, NODE, NODEPOOL, POD
from journeyman.errors import KubeUnavailableError
from journeyman.kube.caching_store import CachingKubeStore
from journeyman.kube.connection_pool import Connection
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.list_cache import ListCache, ListQuery
from journeyman.kube.request_budget import RequestBudget
from journeyman.kube.tls import client_context
from journeyman.kube.transport import Transport
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.clock import VirtualClock
from tests.helpers import builders

MANY = 150
QUIET_SECONDS, PREFETCH_SECONDS = 0.2, 60.0  # long enough for a machine that is busy with other tests


class Sandbox:
    """An API server, and a process that reads it in one run after the other."""

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
        """The store of a new run."""
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
    """What other threads do, at most for a while."""
    until = time.monotonic() + 10
    while not is_so() and time.monotonic() < until:
        time.sleep(0.01)
    assert is_so()


def names(listing):
    return [item.metadata.name for item in listing.items]


def test_a_second_run_reads_only_what_changed(sandbox):
    """Added, changed and deleted pods; what did not change is the very same object, for caches that go by identity."""
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


def test_random_histories_end_alike(sandbox):
    """Whatever happened in between, with any selector, the cached list equals the list."""
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


def test_nothing_new_costs_one_request(sandbox):
    """The store is at the version that we have: no watch."""
    sandbox.run().list(POD)
    sandbox.run().list(POD)
    assert sandbox.budget.usage.requests == 1


def test_a_run_sees_what_it_wrote_itself(sandbox):
    """Also in a list that had been read ahead before the write."""
    sandbox.add(*(f"node-{n:03d}" for n in range(MANY)), kind=NODE)
    warm_up = sandbox.run()
    warm_up.list(NODE)
    warm_up.list(POD)

    run = sandbox.run()
    run.list(NODE)  # pods are on their way, too
    run.delete(POD, "pod-000", namespace="default", grace_period_seconds=0)

    assert "pod-000" not in names(run.list(POD))


def test_lists_that_runs_of_a_step_ask_for_are_read_side_by_side(sandbox):
    """Their silences pass together; runs for other purposes do not pay for them."""
    sandbox.add(*(f"node-{n:03d}" for n in range(MANY)), kind=NODE)
    first = sandbox.run()
    first.list(NODE)
    first.list(POD)
    sandbox.run("sweep").list(NODE)

    run = sandbox.run("sweep")
    run.list(NODE)
    assert sandbox.budget.usage.requests == 1
    run = sandbox.run("provision")
    run.list(NODE)
    run.list(POD)
    assert sandbox.budget.usage.requests == 2


def test_everything_that_a_run_will_ask_for_is_read_with_its_first_list(sandbox):
    """Large and small, raw or not; what the last run did not ask for is not, nor what it asked of one node."""
    sandbox.add(*(f"node-{n:03d}" for n in range(MANY)), kind=NODE)
    first = sandbox.run()
    for kind in (NODE, NODEPOOL, NAMESPACE, POD):
        first.list(kind)
    first.list(POD, field_selector="spec.nodeName=node-001")

    run = sandbox.run()
    run.list(NODE)
    wait_until(lambda: sandbox.budget.usage.requests == 4)
    for kind in (NODEPOOL, NAMESPACE, POD):
        assert run.list(kind).items == sandbox.direct.list(kind).items
    assert sandbox.budget.usage.requests == 4
    run.list(POD)
    assert sandbox.budget.usage.requests == 5  # what was read ahead answers once


def test_what_was_read_ahead_is_not_good_for_long(sandbox):
    """A run that waited before it asks wants to know what is now."""
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


def test_another_cluster_of_the_same_name_is_not_answered_from_memory(sandbox):
    """Made again elsewhere, and even at the same address and version: its objects have other UIDs."""
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


def test_a_cluster_is_known_by_its_address_and_by_whom_it_is_trusted(make_certificate):
    """The same ones make the same cluster, as when a connection is made anew."""

    def identity(server, authority):
        return Transport(Connection(server=server, ssl_context=client_context(ca_file=str(authority)))).identity

    (one, _), (two, _) = make_certificate(), make_certificate()
    assert identity("https://k:6443", one) == identity("https://k:6443/", one)
    assert len({identity(server, ca) for server in ("https://k:6443", "https://l:6443") for ca in (one, two)}) == 4


def test_a_version_that_is_too_old_is_listed_again(sandbox):
    """410: the history in between is forgotten."""
    sandbox.run().list(POD)
    sandbox.add("another")
    sandbox.server.forget_history()

    assert sandbox.run().list(POD).items == sandbox.direct.list(POD).items


def test_small_lists_and_raw_objects_are_listed_each_time(sandbox):
    """A watch costs a connection; raw objects could be changed by who gets them."""
    sandbox.add("n", kind=NODE)
    for _ in range(2):
        run = sandbox.run()
        run.list(NODE)
        run.list(NODEPOOL)
        assert sandbox.budget.usage.requests == 2
    assert sandbox.store.cached_list(ListQuery(NODE)) is None


def test_what_is_remembered_is_bounded():
    """Of all clusters together; who was used longest ago goes first."""
    cache = ListCache(max_objects=MANY + 10)
    one, two = Sandbox(cache), Sandbox(cache)
    try:
        for sandbox in (one, two):
            sandbox.add(*(f"pod-{n:03d}" for n in range(MANY)))
        one.store.list(POD)
        two.store.list(POD)

        assert one.store.cached_list(ListQuery(POD)) is None
        assert len(two.store.cached_list(ListQuery(POD)).objects) == MANY
    finally:
        one.close()
        two.close()


def test_an_api_server_that_is_gone_is_told_and_nothing_old_is_given_out(sandbox):
    """A snapshot of yesterday is worse than none; once the server is back, all is as before."""
    sandbox.run().list(POD)
    port = int(sandbox.front.url.rpartition(":")[2])
    sandbox.front.close()
    sandbox.transport.close()
    with pytest.raises(KubeUnavailableError):
        sandbox.run().list(POD)
    sandbox.front = HttpApiServer(sandbox.server, port=port)
    assert sandbox.run().list(POD).items == sandbox.direct.list(POD).items


# What follows is said by a script, since it is about moments that no server can be made to have.


def said(script, version, *items, count=0, **status):
    """A list, or its first object of `count`."""
    more = {"continue": "more", "remainingItemCount": count - len(items)} if count > len(items) else {}
    script.say(200, {"metadata": {"resourceVersion": version, **more}, "items": items})


def pod(name, version, **labels):
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version, "labels": labels}}


def told(script, *events, whole=True):
    """A watch's answer: what it says of which pods; not `whole` breaks off within the last."""
    lines = b"".join(json.dumps({"type": kind, "object": body}).encode() + b"\n" for kind, body in events)
    lines = lines if whole else lines[:-20]
    chunk = b"%x\r\n%b\r\n" % (len(lines), lines) if lines else b""
    if whole:
        script.say(200, chunk + b"0\r\n\r\n", Transfer_Encoding="chunked")
    else:
        script.say(200, chunk, Transfer_Encoding="chunked", Connection="close")


def asked(script):
    """What each request was for: a list, its first object, or a watch."""
    words = [path.partition("?")[2].partition("&")[0] for _, path, _ in script.requests]
    return [{"limit=1": "first", "watch=1": "watch"}.get(word, "list") for word in words]


@pytest.fixture
def scripted(script):
    """Reads what the script says, and remembers the shortest list; with what it logs."""
    log = []
    transport = Transport(Connection(server=script.url))
    store = CachingKubeStore(
        HttpKubeStore(transport),
        ListCache(worth_caching=0),
        cluster="c",
        quiet_seconds=QUIET_SECONDS,
        log=lambda level, message, **fields: log.append((level, message, fields)),
    )
    yield SimpleNamespace(list=lambda: store.for_run(RequestBudget()).list(POD), log=log)
    transport.close()


def test_a_watch_that_is_cut_in_an_object_is_no_news(script, scripted):
    """What came whole is not worth the doubt: everything is listed again."""
    said(script, "7", pod("a", "7"), pod("b", "7"))
    said(script, "9", pod("a", "8"), count=2)
    told(script, ("MODIFIED", pod("a", "8", half="said")), whole=False)
    said(script, "9", pod("b", "7"))

    assert names(scripted.list()) == ["a", "b"]
    assert names(scripted.list()) == ["b"]
    assert asked(script) == ["list", "first", "watch", "list"]


def test_versions_that_are_no_numbers_are_only_ever_equal(script, scripted):
    """Whoever serves them so promises nothing about their order; the silence decides then."""
    said(script, "x1", pod("a", "x1"))
    said(script, "x2", pod("a", "x1"))
    told(script, ("MODIFIED", pod("a", "x3", new="yes")))

    scripted.list()
    (found,) = scripted.list().items
    assert found.metadata.labels == {"new": "yes"}


def test_a_list_is_as_it_was_at_one_version(script, scripted):
    """The store's when it was asked: the first later event says that all before it have come, and is left for next time."""
    said(script, "7", pod("a", "7"), pod("b", "7"))
    said(script, "9", pod("a", "7"), count=2)
    told(script, ("MODIFIED", pod("b", "8", new="yes")), ("DELETED", pod("a", "11")))

    scripted.list()
    found = scripted.list()
    assert (names(found), found.resource_version) == (["a", "b"], "9")
    assert found.items[1].metadata.labels == {"new": "yes"}


def test_the_watch_is_asked_for_where_the_version_was_told(script, scripted):
    """On the same connection: another server of the control plane may not know that version yet."""
    said(script, "7", pod("a", "7"))
    said(script, "9", pod("a", "9"), count=1)
    told(script, ("MODIFIED", pod("a", "9")))

    scripted.list()
    scripted.list()
    assert script.ports[1] == script.ports[2] != script.ports[0]


def test_an_event_that_comes_late_is_missed_by_number_and_waited_for(script, scripted):
    """A silence that was too short is followed by a longer one."""
    said(script, "7", pod("a", "7"))
    for late in ((), (("ADDED", pod("b", "9")),)):
        said(script, "9", pod("a", "7"), count=2)
        told(script, *late)

    scripted.list()
    assert names(scripted.list()) == ["a", "b"]
    assert asked(script) == ["list", "first", "watch", "first", "watch"]


@pytest.mark.parametrize(
    ("version", "sample", "count", "watches"),
    [
        ("9", pod("a", "7"), 3, 2),  # more than we have
        ("9", pod("z", "7"), 2, 2),  # one that we do not have
        ("9", pod("a", "8"), 2, 2),  # one that we have otherwise
        ("5", pod("a", "4"), 2, 0),  # a store of earlier, as after a restore
    ],
)
def test_what_does_not_fit_is_listed_again(script, scripted, version, sample, count, watches):
    """At the second doubt; where the store has gone back, at once."""
    said(script, "7", pod("a", "7"), pod("b", "7"))
    for _ in range(watches or 1):
        said(script, version, sample, count=count)
        if watches:
            told(script)
    said(script, version, sample)

    scripted.list()
    assert names(scripted.list()) == [sample["metadata"]["name"]]
    assert asked(script).count("watch") == watches


def test_where_watching_is_forbidden_lists_are_read_whole_and_that_is_said_once(script, scripted):
    """An identity that may list can run; nothing is asked in vain again."""
    why = 'pods is forbidden: User "ci" cannot watch resource "pods" in API group "" at the cluster scope'
    said(script, "7", pod("a", "7"))
    said(script, "9", pod("a", "7"), count=2)
    script.say(403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": why})
    said(script, "9", pod("a", "7"), pod("b", "9"))

    assert [names(scripted.list()) for _ in range(4)] == [["a"], ["a", "b"], ["a", "b"], ["a", "b"]]
    assert asked(script) == ["list", "first", "watch", "list", "list", "list"]
    ((level, message, fields),) = scripted.log
    assert (level, fields["cluster"], fields["kind"], fields["verb"]) == ("warning", "c", "Pod", "watch")
    assert why in message
    assert "helm upgrade" in fields["to_do"]
