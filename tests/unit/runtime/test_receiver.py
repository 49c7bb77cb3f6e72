"""The receiver's sender and cluster connection. Events are tested on a real API server, in `tests/e2e`."""

import base64
import json
from datetime import datetime, timedelta, timezone

import pytest

from journeyman.errors import ConfigurationError, KubeUnavailableError
from journeyman.runtime.composition import Runtime
from journeyman.runtime.receiver import Receiver, read_sender
from journeyman.steps.context import Settings
from journeyman_simulator.clock import VirtualClock
from tests.helpers.fakes import FakeQueue

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
SENDER = read_sender({"FORWARDER_SERVICE_ACCOUNT": "journeyman/forwarder"})


def test_sender_is_one_service_account_with_one_audience():
    """Its Kubernetes user name identifies it."""
    sender = read_sender({"FORWARDER_SERVICE_ACCOUNT": "journeyman/forwarder", "FORWARDER_AUDIENCE": "us"})

    assert (sender.user, sender.audience) == ("system:serviceaccount:journeyman:forwarder", "us")


def test_by_default_no_sender_is_authorized():
    """The route is public, so a user must enable it."""
    assert read_sender({}).service_account == ""
    assert read_sender({}).audience == "journeyman"


@pytest.mark.parametrize("account", ["forwarder", "journeyman/", "/forwarder"])
def test_service_account_without_a_namespace_is_refused(account):
    """Every namespace may have a service account of that name."""
    with pytest.raises(ConfigurationError, match="FORWARDER_SERVICE_ACCOUNT does not parse"):
        read_sender({"FORWARDER_SERVICE_ACCOUNT": account})


class Moved:
    """Adapters whose first connection leads to a deleted cluster; the second one accepts the sender."""

    def __init__(self):
        self.clock, self.fake_queue, self.connected = VirtualClock(NOW), FakeQueue(), 0

    def store(self, cluster):
        self.connected += 1
        return GoneCluster() if self.connected == 1 else KnowingCluster()

    def queue(self):
        return self.fake_queue

    def log(self, level, message, **fields):
        """Log nothing."""


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
    event = {"version": "1", "source": "forwarder", "id": "m1", "time": NOW.isoformat(), "cluster": "blue"}
    body = json.dumps({**event, "step": "provision", "reason": "3 pods wait"}).encode()

    with pytest.raises(KubeUnavailableError):
        receiver.receive(runtime, "blue", f"Bearer {a_token()}", body)
    verdict = receiver.receive(runtime, "blue", f"Bearer {a_token()}", body)

    assert (verdict.status, moved.connected) == (202, 2)
    assert [message.cluster for message in moved.fake_queue.sent] == ["blue"]


def test_event_of_nested_objects_is_refused():
    """The sender is at fault, so the response is not one that asks for a retry."""
    moved = Moved()
    moved.connected = 1
    runtime, receiver = Runtime({"blue": Settings(cluster_name="blue")}, moved), Receiver(SENDER)

    assert receiver.receive(runtime, "blue", f"Bearer {a_token()}", b'{"a":' * 1_400 + b"1").status == 400
    assert moved.fake_queue.sent == []


def test_token_of_nested_objects_is_refused():
    """Anyone may send a token."""
    runtime, receiver = Runtime({"blue": Settings(cluster_name="blue")}, Moved()), Receiver(SENDER)
    claims = base64.urlsafe_b64encode(b'{"a":' * 1_200 + b"1").decode()

    assert receiver.receive(runtime, "blue", f"Bearer h.{claims}.s", b"{}").status == 401


def a_token():
    expires = (NOW + timedelta(hours=1)).timestamp()
    claims = {"sub": "system:serviceaccount:journeyman:forwarder", "aud": ["journeyman"], "exp": expires}
    return f"h.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.s"
