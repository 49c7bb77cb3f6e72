"""Metrics count each run's API requests and bytes by step and cluster, the last writes of the run included."""

import json
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from journeyman.core.api.objects import NODE
from journeyman.core.plan import Event, ObjectRef, Step
from journeyman.kube.caching_store import CachingKubeStore, ListCache
from journeyman.kube.connection_pool import Connection
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman.ports import RequeueDue
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.http_server import HttpApiServer
from journeyman_simulator.clock import VirtualClock
from tests.unit.runtime.test_aws import Clients
from tests.unit.runtime.test_environment import MINIMAL

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
CONTEXT = SimpleNamespace(aws_request_id="req-1", get_remaining_time_in_millis=lambda: 10_000)


@pytest.fixture
def runtime():
    clock = VirtualClock(NOW)
    server = ApiServer(clock)
    server.load([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}])
    with HttpApiServer(server) as front:
        transport = Transport(Connection(server=front.url))
        store = CachingKubeStore(HttpKubeStore(transport), ListCache(), cluster="dev")
        environment = read_environment(MINIMAL)
        yield Runtime(
            environment.settings, AwsAdapters(environment, clock=clock, stores=lambda _: store, clients=Clients())
        )
        transport.close()


def test_requests_and_bytes_of_a_run_are_metrics(runtime, capsys):
    """The run makes two lists and writes a Kubernetes Event at its end."""
    trigger = RequeueDue(id="m-1", cluster="dev", step=Step.TERMINATE, reason="drain", time=NOW)
    with runtime.invocation(trigger, CONTEXT) as run:
        run.store.list(NODE)
        run.store.list(NODE)
        run.telemetry.event(Event(ref=ObjectRef(resource=NODE, name="n"), reason="Drained", message="done"))

    (line,) = (json.loads(text) for text in capsys.readouterr().out.splitlines() if "journeyman_kube" in text)

    assert (line["controller"], line["cluster"]) == ("terminate", "dev")
    assert line["journeyman_kube_requests_total"] == [3]
    assert line["journeyman_kube_retries_total"] == [0]
    assert line["journeyman_kube_sent_bytes_total"][0] > 100
    assert line["journeyman_kube_received_bytes_total"][0] > 100
