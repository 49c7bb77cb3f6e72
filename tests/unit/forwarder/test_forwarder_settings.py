"""The settings of the process, and the errors for invalid ones."""

from pathlib import Path

import pytest

from infra.forwarder.__main__ import main
from infra.forwarder.forwarder_settings import SettingError, read_settings
from infra.forwarder.notifications import NotifiedStep

IN_CLUSTER = {"CLUSTER_NAME": "dev", "KUBERNETES_SERVICE_HOST": "10.100.0.1", "KUBERNETES_SERVICE_PORT": "443"}
QUEUES = {"PROVISION_QUEUE_URL": "https://sqs/p.fifo", "TERMINATE_QUEUE_URL": "https://sqs/t.fifo"}


def test_service_account_is_the_default_connection():
    """Only the cluster's name and the queues are required."""
    settings = read_settings({**IN_CLUSTER, **QUEUES})

    assert settings.server == "https://10.100.0.1:443"
    assert settings.token_file == Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
    assert settings.queues == {
        NotifiedStep.PROVISION: "https://sqs/p.fifo",
        NotifiedStep.TERMINATE: "https://sqs/t.fifo",
    }
    assert (settings.sink, settings.idle_seconds, settings.max_seconds, settings.port) == ("sqs", 1.0, 10.0, 8081)


def test_ipv6_address_gets_brackets_in_the_url():
    """kubelet sets the variable without brackets."""
    assert (
        read_settings({**IN_CLUSTER, **QUEUES, "KUBERNETES_SERVICE_HOST": "fd00::1"}).server == "https://[fd00::1]:443"
    )


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1m30s", 90.0), ("0.5s", 0.5)])
def test_durations_have_the_format_of_karpenters_settings(text, seconds):
    """It is the format of Go's durations."""
    assert read_settings({**IN_CLUSTER, **QUEUES, "BATCH_IDLE_DURATION": text}).idle_seconds == seconds


def test_receiver_url_has_the_name_of_the_cluster():
    """The name may contain any characters."""
    changes = {**IN_CLUSTER, "SINK": "https", "RECEIVER_URL": "https://api.example.org/v1/", "CLUSTER_NAME": "a/b"}

    assert read_settings(changes).receiver_url == "https://api.example.org/v1/clusters/a%2Fb/events"


@pytest.mark.parametrize(
    ("changes", "complaint"),
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
def test_invalid_setting_is_an_error_with_an_example(changes, complaint, capsys):
    """The process ends with the error, so that the pod's status shows it."""
    variables = {**IN_CLUSTER, **QUEUES, **changes}
    with pytest.raises(SettingError, match=complaint):
        read_settings(variables)

    assert main(variables) == 2
    assert complaint in capsys.readouterr().err
