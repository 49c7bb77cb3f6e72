"""The receiver's sender, its bounds and its cluster connection. `tests/e2e` sends events to a real API server."""

import base64
import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

from journeyman.errors import ConfigurationError, InvariantError, KubeUnavailableError
from journeyman.runtime.api import receive
from journeyman.runtime.composition import Runtime
from journeyman.runtime.receiver import (
    MAX_EVENT_AGE,
    MAX_EVENT_BYTES,
    MAX_KEPT_IDS,
    MAX_TOKEN_LENGTH,
    Receiver,
    read_sender,
)
from journeyman.steps.context import Settings
from journeyman_simulator.clock import VirtualClock
from tests.helpers.fakes import FakeQueue

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
SENDER = read_sender({"FORWARDER_SERVICE_ACCOUNT": "journeyman/forwarder"})


def test_sender_is_one_service_account_with_one_audience():
    """Its Kubernetes user name identifies it. The route is public, so by default no sender is authorized."""
    sender = read_sender({"FORWARDER_SERVICE_ACCOUNT": "journeyman/forwarder", "FORWARDER_AUDIENCE": "us"})

    assert (sender.user, sender.audience) == ("system:serviceaccount:journeyman:forwarder", "us")
    assert (read_sender({}).service_account, read_sender({}).audience) == ("", "journeyman")


@pytest.mark.parametrize("account", ["forwarder", "journeyman/", "/forwarder"])
def test_service_account_without_a_namespace_is_refused(account):
    """Every namespace may have a service account of that name."""
    with pytest.raises(ConfigurationError, match="FORWARDER_SERVICE_ACCOUNT does not parse"):
        read_sender({"FORWARDER_SERVICE_ACCOUNT": account})


class Moved:
    """Adapters whose first connection leads to a deleted cluster; the second one accepts the sender."""

    def __init__(self):
        self.clock, self.fake_queue, self.connected = VirtualClock(NOW), FakeQueue(), 0
        self.lines = []

    def store(self, cluster):
        self.connected += 1
        return GoneCluster() if self.connected == 1 else KnowingCluster()

    def queue(self):
        return self.fake_queue

    def log(self, level, message, **fields):
        self.lines.append((message, fields))


class GoneCluster:
    def create(self, resource, body):
        raise KubeUnavailableError("the API server's name does not resolve")


class KnowingCluster:
    def create(self, resource, body):
        user = {"username": "system:serviceaccount:journeyman:forwarder"}
        return {"status": {"authenticated": True, "audiences": ["journeyman"], "user": user}}


def test_recreated_cluster_is_connected_for_the_next_event():
    """The receiver's process may run for hours, and the forwarder retries rejected events."""
    moved = Moved()
    runtime, receiver = Runtime({"blue": Settings(cluster_name="blue")}, moved), Receiver(SENDER)
    body = an_event()

    with pytest.raises(KubeUnavailableError):
        receiver.receive(runtime, "blue", f"Bearer {a_token()}", body)
    verdict = receiver.receive(runtime, "blue", f"Bearer {a_token()}", body)

    assert (verdict.status, moved.connected) == (202, 2)
    assert [message.cluster for message in moved.fake_queue.sent] == ["blue"]


def a_token(**changes):
    expires = (NOW + timedelta(hours=1)).timestamp()
    claims = {"sub": "system:serviceaccount:journeyman:forwarder", "aud": ["journeyman"], "exp": expires, **changes}
    return f"h.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.s"


def an_event(*, size=0, **changes):
    """Return the body of an event, with spaces up to a size."""
    event = {"version": "1", "source": "forwarder", "id": "m1", "time": NOW.isoformat(), "cluster": "blue"}
    return json.dumps({**event, "step": "provision", "reason": "3 pods wait", **changes}).encode().ljust(size)


class Known:
    """A receiver whose cluster accepts the sender, or answers its review otherwise."""

    def __init__(self, review=None):
        self.moved = Moved()
        self.moved.connected = 1
        if review is not None:
            self.moved.store = lambda _: SimpleNamespace(create=review)
        self.runtime = Runtime({"blue": Settings(cluster_name="blue")}, self.moved)
        self.receiver = Receiver(SENDER)

    def receive(self, body, token=None):
        return self.receiver.receive(self.runtime, "blue", f"Bearer {token or a_token()}", body)


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (an_event(size=MAX_EVENT_BYTES), 202),
        (an_event(size=MAX_EVENT_BYTES + 1), 413),
        (an_event(time=(NOW - MAX_EVENT_AGE).isoformat()), 202),
        (an_event(time=(NOW - MAX_EVENT_AGE - SECOND).isoformat()), 400),
        (an_event(time=(NOW + MAX_EVENT_AGE).isoformat()), 202),
        (an_event(time=(NOW + MAX_EVENT_AGE + SECOND).isoformat()), 400),
        (an_event(cluster="green"), 400),
        (an_event(source="requeue"), 400),
        (b"{", 400),
        (b'{"a":' * 1_400 + b"1", 400),
    ],
    ids=[
        *("largest", "larger", "oldest", "older", "latest", "later"),
        *("of another cluster", "no forwarder's", "no JSON", "nested"),
    ],
)
def test_only_recent_events_of_the_requests_cluster_are_sent_on(body, status):
    """Each refusal is logged with its reason."""
    known = Known()

    assert known.receive(body).status == status
    assert len(known.moved.fake_queue.sent) == (1 if status == 202 else 0)
    assert [(message, fields["status"], bool(fields["why"])) for message, fields in known.moved.lines] == (
        [] if status == 202 else [("event refused", str(status), True)]
    )


NESTED = b'{"a":' * 1_200 + b"1"


def long_token(length):
    return a_token().ljust(length, "s")


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {long_token(MAX_TOKEN_LENGTH)}", 202),
        (f"Bearer {long_token(MAX_TOKEN_LENGTH + 1)}", 401),
        (a_token(), 401),
        ("Bearer ", 401),
        ("", 401),
        ("Bearer nonsense", 401),
        (f"Bearer {a_token(aud='journeyman')}", 202),
        (f"Bearer {a_token(aud=['other'])}", 401),
        (f"Bearer {a_token(sub='system:serviceaccount:journeyman:other')}", 401),
        (f"Bearer {a_token(exp=NOW.timestamp())}", 401),
        (f"Bearer {a_token(exp=NOW.timestamp() + 1)}", 202),
        (f"Bearer h.{base64.urlsafe_b64encode(NESTED).decode()}.s", 401),
        *((f"Bearer {a_token(jti='x' * more)}", 202) for more in range(4)),  # Base64 without padding
    ],
    ids=[
        *("longest", "longer", "not bearer", "empty", "missing", "no token", "one audience", "other audience"),
        *("other account", "expires now", "expires soon", "nested", "even", "one more", "two more", "three more"),
    ],
)
def test_only_current_tokens_of_the_sender_reach_the_cluster(authorization, status):
    """Anyone may send to the route, and each TokenReview is a request to the API server."""
    known = Known()

    assert known.receiver.receive(known.runtime, "blue", authorization, an_event()).status == status
    assert known.moved.connected == (2 if status == 202 else 1)


@pytest.mark.parametrize(
    "status",
    [
        None,
        {},
        {"authenticated": False, "error": "token has been invalidated"},
        {"authenticated": True, "audiences": ["other"], "user": {"username": SENDER.user}},
        {"authenticated": True, "user": {"username": SENDER.user}},
        {"authenticated": True, "audiences": ["journeyman"], "user": {"username": "system:anonymous"}},
        {"authenticated": True, "audiences": ["journeyman"]},
    ],
)
def test_cluster_must_confirm_the_tokens_user_and_audience(status):
    """The claims in a token are what its sender wrote."""
    known = Known(lambda _resource, _body: {"status": status})

    assert known.receive(an_event()).status == 401
    assert known.moved.fake_queue.sent == []


def test_event_is_sent_on_once():
    """The last thousand are remembered, so that a forwarder may repeat an event whose response was lost."""
    known = Known()
    ids = [f"m{number}" for number in range(MAX_KEPT_IDS)]
    first = [known.receive(an_event(id=id_)).body["status"] for id_ in ids]
    again = known.receive(an_event(id="m0")).body["status"]
    known.receive(an_event(id="another"))
    forgotten, kept = (known.receive(an_event(id=id_)).body["status"] for id_ in ("m0", "m2"))

    assert set(first) == {"sent"}
    assert (again, forgotten, kept) == ("known", "sent", "known")


@pytest.mark.parametrize(("error", "status"), [(InvariantError("secret"), 500), (KubeUnavailableError("secret"), 503)])
def test_unauthenticated_sender_learns_nothing_of_an_error(monkeypatch, error, status):
    """The log has it."""
    monkeypatch.setenv("FORWARDER_SERVICE_ACCOUNT", "journeyman/forwarder")

    def fail(_resource, _body):
        raise error

    known = Known(fail)
    response = receive(known.runtime, "blue", f"Bearer {a_token()}", an_event())

    assert (response.status_code, response.body) == (status, {"error": "Unavailable", "message": "try again later"})
    assert "secret" in known.moved.lines[0][0]
