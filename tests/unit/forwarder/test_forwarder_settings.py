"""What the process is told, and what it says when it is told nonsense."""

from pathlib import Path

import pytest

from infra.forwarder.__main__ import main
from infra.forwarder.forwarder_settings import SettingError, read_settings
from infra.forwarder.notifications import NotifiedStep

IN_CLUSTER = {"CLUSTER_NAME": "dev", "KUBERNETES_SERVICE_HOST": "10.100.0.1", "KUBERNETES_SERVICE_PORT": "443"}
QUEUES = {"PROVISION_QUEUE_URL": "https://sqs/p.fifo", "TERMINATE_QUEUE_URL": "https://sqs/t.fifo"}


def test_in_a_pod_the_service_account_says_where_the_cluster_is():
    """Nothing but the cluster's name and the lanes has to be given."""
    settings = read_settings({**IN_CLUSTER, **QUEUES})

    assert settings.server == "https://10.100.0.1:443"
    assert settings.token_file == Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
    assert settings.queues == {
        NotifiedStep.PROVISION: "https://sqs/p.fifo",
        NotifiedStep.TERMINATE: "https://sqs/t.fifo",
    }
    assert (settings.sink, settings.idle_seconds, settings.max_seconds, settings.port) == ("sqs", 1.0, 10.0, 8081)


def test_an_ipv6_cluster_is_reached():
    """Addresses with colons need brackets in a URL."""
    assert (
        read_settings({**IN_CLUSTER, **QUEUES, "KUBERNETES_SERVICE_HOST": "fd00::1"}).server == "https://[fd00::1]:443"
    )


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1m30s", 90.0), ("0.5s", 0.5)])
def test_durations_are_written_as_in_karpenters_settings(text, seconds):
    """Go's form."""
    assert read_settings({**IN_CLUSTER, **QUEUES, "BATCH_IDLE_DURATION": text}).idle_seconds == seconds


def test_the_receivers_route_has_the_clusters_name_in_it():
    """Whatever letters that has."""
    told = {**IN_CLUSTER, "SINK": "https", "RECEIVER_URL": "https://api.example.org/v1/", "CLUSTER_NAME": "a/b"}

    assert read_settings(told).receiver_url == "https://api.example.org/v1/clusters/a%2Fb/events"


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        ({"CLUSTER_NAME": ""}, "CLUSTER_NAME is not set"),
        ({"TERMINATE_QUEUE_URL": ""}, "TERMINATE_QUEUE_URL is not set"),
        ({"SINK": "kafka"}, "SINK is 'kafka': none of sqs, eventbridge, https"),
        ({"SINK": "https", "RECEIVER_URL": "http://x"}, "a token is only sent over https"),
        ({"BATCH_MAX_DURATION": "ten"}, "BATCH_MAX_DURATION is 'ten': not a duration; an example is '10s'"),
        ({"BATCH_MAX_DURATION": "10"}, "not a duration"),
        ({"KUBERNETES_SERVICE_HOST": ""}, "set KUBERNETES_URL"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_should_look_like(told, complaint, capsys):
    """And the process ends, so that the pod says so."""
    variables = {**IN_CLUSTER, **QUEUES, **told}
    with pytest.raises(SettingError, match=complaint):
        read_settings(variables)

    assert main(variables) == 2
    assert complaint in capsys.readouterr().err
