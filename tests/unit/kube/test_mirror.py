"""Warm reads over real HTTP: what a mirror says is what a fresh list says, and trouble only costs a list."""

import random
import threading
from datetime import datetime, timezone

import pytest

from journeyman.core.api.objects import NODE, NODEPOOL, POD
from journeyman.errors import KubeUnavailableError
from journeyman.kube.allowance import Allowance
from journeyman.kube.connection import Connection
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.mirror import MirroredKubeStore, Mirrors, Question
from journeyman.kube.transport import Transport
from journeyman.simulate.apiserver import ApiServer
from journeyman.simulate.apiserver.http import HttpFront
from journeyman.simulate.clock import VirtualClock
from tests.helpers import builders

MANY = 150
QUIET_SECONDS = 0.2  # long enough for a machine that is busy with other tests


class Sandbox:
    """An API server, and a process that reads it in one run after the other."""

    def __init__(self, mirrors=None):
        self.server = ApiServer(VirtualClock(datetime(2026, 3, 1, tzinfo=timezone.utc)))
        self.server.load([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}])
        self.front = HttpFront(self.server)
        self.transport = Transport(Connection(server=self.front.url))
        self.direct = HttpKubeStore(self.transport)
        self.mirrors = mirrors or Mirrors()
        self.store = MirroredKubeStore(self.direct, self.mirrors, cluster="c", quiet_seconds=QUIET_SECONDS)
        self.allowance = Allowance()

    def run(self, purpose="provision"):
        """The store of a new run."""
        self.allowance = Allowance()
        return self.store.for_run(self.allowance, purpose)

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


def names(listing):
    return [item.metadata.name for item in listing.items]


def test_a_second_run_reads_only_what_changed(sandbox):
    """Added, changed and deleted pods; what did not change is the very same object, for caches that go by identity."""
    first = sandbox.run().list(POD)
    whole = sandbox.allowance.usage
    sandbox.add("another")
    sandbox.server.patch(POD, "pod-007", {"metadata": {"labels": {"seen": "yes"}}}, namespace="default")
    sandbox.server.delete(POD, "pod-008", namespace="default", grace_period_seconds=0)

    second = sandbox.run().list(POD)

    assert second.items == sandbox.direct.list(POD).items
    kept = {pod.metadata.name: pod for pod in first.items}
    assert sum(pod is kept.get(pod.metadata.name) for pod in second.items) == MANY - 2
    assert sandbox.allowance.usage.received_bytes < whole.received_bytes / 10
    assert sandbox.allowance.usage.requests == 2


def test_random_histories_end_alike(sandbox):
    """Whatever happened in between, with any selector, the mirror is the list."""
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
    assert sandbox.allowance.usage.requests == 1


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
    assert sandbox.allowance.usage.requests == 1
    before = threading.active_count()
    run = sandbox.run("provision")
    run.list(NODE)
    run.list(POD)
    assert sandbox.allowance.usage.requests == 2
    assert threading.active_count() <= before + 2  # idle threads go by themselves


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
        assert sandbox.allowance.usage.requests == 2
    assert sandbox.store.remembered(Question(NODE)) is None


def test_what_is_remembered_is_bounded():
    """Of all clusters together; who was used longest ago goes first."""
    mirrors = Mirrors(most_objects=MANY + 10)
    one, two = Sandbox(mirrors), Sandbox(mirrors)
    try:
        for sandbox in (one, two):
            sandbox.add(*(f"pod-{n:03d}" for n in range(MANY)))
        one.store.list(POD)
        two.store.list(POD)

        assert one.store.remembered(Question(POD)) is None
        assert len(two.store.remembered(Question(POD)).objects) == MANY
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
    sandbox.front = HttpFront(sandbox.server, port=port)
    assert sandbox.run().list(POD).items == sandbox.direct.list(POD).items


def test_a_watch_that_is_cut_in_an_object_is_no_news(script):
    """What came whole is not worth the doubt: everything is listed again."""
    pods = [{"metadata": {"name": name, "resourceVersion": "7"}} for name in ("a", "b")]
    change = b'{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"8","labels":{"half'
    script.say(200, {"metadata": {"resourceVersion": "7"}, "items": pods})
    script.say(200, {"metadata": {"resourceVersion": "9"}, "items": pods[:1]})
    script.say(200, b"%x\r\n%b\r\n" % (len(change), change), Transfer_Encoding="chunked", Connection="close")
    script.say(200, {"metadata": {"resourceVersion": "9"}, "items": pods[1:]})
    store = HttpKubeStore(Transport(Connection(server=script.url)))
    mirrored = MirroredKubeStore(store, Mirrors(worth_keeping=0), quiet_seconds=QUIET_SECONDS)

    assert names(mirrored.list(POD)) == ["a", "b"]
    assert names(mirrored.list(POD)) == ["b"]

    asked = [path.partition("?")[2].partition("&")[0] for _, path, _ in script.requests]
    assert asked == ["limit=500", "limit=1", "watch=1", "limit=500"]


def test_versions_that_are_no_numbers_are_only_ever_equal(script):
    """Whoever serves them so promises nothing about their order; the silence decides then."""
    pods = [{"metadata": {"name": "a", "resourceVersion": "x1"}}]
    change = b'{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"x3","labels":{"new":"yes"}}}}\n'
    script.say(200, {"metadata": {"resourceVersion": "x1"}, "items": pods})
    script.say(200, {"metadata": {"resourceVersion": "x2"}, "items": pods})
    script.say(200, b"%x\r\n%b\r\n" % (len(change), change) + b"0\r\n\r\n", Transfer_Encoding="chunked")
    store = HttpKubeStore(Transport(Connection(server=script.url)))
    mirrored = MirroredKubeStore(store, Mirrors(worth_keeping=0), quiet_seconds=QUIET_SECONDS)

    mirrored.list(POD)
    (pod,) = mirrored.list(POD).items

    assert pod.metadata.labels == {"new": "yes"}
