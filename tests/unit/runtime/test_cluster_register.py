"""The register of clusters: the environment and SSM parameters, which take effect without a deployment."""

import json
from datetime import datetime, timezone

import pytest

from journeyman.errors import CloudUnavailableError, ConfigurationError, UnknownClusterError
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import VirtualClock

START = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)
PATH = "/journeyman/stack/clusters"
VARIABLES = {
    "JOURNEYMAN_CLUSTERS": '[{"name": "home", "region": "eu-west-1"}]',
    "JOURNEYMAN_CLUSTERS_PATH": PATH,
    "JOURNEYMAN_PROVISION_QUEUE_URL": "https://sqs/provision.fifo",
    "JOURNEYMAN_TERMINATE_QUEUE_URL": "https://sqs/terminate.fifo",
    "JOURNEYMAN_CONSOLIDATE_QUEUE_URL": "https://sqs/consolidate.fifo",
    "JOURNEYMAN_REQUEUE_QUEUE_URL": "https://sqs/requeue",
    "AWS_REGION": "eu-west-1",
    "_HANDLER": "provision.lambda_handler",
}
ROLES = "arn:aws:iam::111122223333:role/journeyman-emea-*"


class ParameterStore:
    """SSM's parameters below the path, in pages of ten; `fails` is raised instead."""

    def __init__(self):
        self.values, self.reads, self.fails = {}, 0, None

    def put(self, name, **fields):
        self.values[f"{PATH}/{name}"] = json.dumps({"region": "eu-west-1", **fields})

    def get_paginator(self, _operation):
        return self

    def paginate(self, Path):  # noqa: N803 - boto3's name
        assert Path == PATH
        self.reads += 1
        if self.fails:
            raise self.fails
        found = [{"Name": name, "Value": value} for name, value in sorted(self.values.items())]
        return [{"Parameters": found[start : start + 10]} for start in range(0, max(len(found), 1), 10)]


class Register:
    """The runtime of a process, its parameters, and what it reported."""

    def __init__(self, path=PATH):
        self.clock, self.ssm = VirtualClock(START), ParameterStore()
        self.lines, self.samples = [], []
        self.adapters = AwsAdapters(
            read_environment({**VARIABLES, "JOURNEYMAN_CLUSTERS_PATH": path}),
            clock=self.clock,
            stores=lambda _: ApiServer(self.clock),
            clients=lambda _service, _region: self.ssm,
        )
        self.adapters.log = lambda level, message, **fields: self.lines.append((level, message, fields))
        self.adapters.observe = lambda samples: self.samples.extend(sample.name for sample in samples)
        self.runtime = Runtime(self.adapters.clusters.settings, self.adapters)


@pytest.fixture
def register():
    return Register()


def test_register_holds_more_clusters_than_an_environment_variable(register):
    """Lambda's variables hold 4 KB together."""
    for number in range(200):
        register.ssm.put(f"cluster-{number:03}", access={"kind": "eks", "roleArn": ROLES})

    assert len(register.runtime.clusters) == 201
    assert register.runtime.settings_of("cluster-199").cluster_name == "cluster-199"
    role = register.adapters.clusters["cluster-007"].access.role_arn
    assert role == "arn:aws:iam::111122223333:role/journeyman-emea-provision"
    assert register.ssm.reads == 1


def test_change_of_the_register_takes_effect_within_five_minutes(register):
    """A message for a new cluster has it read at once; the next sweep after five minutes finds it, too."""
    assert register.runtime.clusters == ("home",)
    register.ssm.put("new")
    register.clock.advance(14)
    with pytest.raises(UnknownClusterError):
        register.runtime.settings_of("new")
    register.clock.advance(1)
    assert register.runtime.settings_of("new").cluster_name == "new"

    del register.ssm.values[f"{PATH}/new"]
    register.clock.advance(299)
    assert register.runtime.clusters == ("home", "new")
    register.clock.advance(1)
    assert register.runtime.clusters == ("home",)
    with pytest.raises(UnknownClusterError):
        register.runtime.settings_of("new")


def test_changed_registration_connects_the_cluster_again(register):
    register.ssm.put("moving")
    settings = register.runtime.settings_of("moving")
    register.adapters.store(settings)
    assert not register.adapters.is_outdated(settings)

    register.ssm.put("moving", region="eu-central-1")
    register.clock.advance(301)
    assert register.adapters.is_outdated(settings)


@pytest.mark.parametrize(("path", "reads"), [(PATH, 1), ("", 0)])
def test_environment_wins_over_a_parameter_of_the_same_name(path, reads):
    """The parameter is reported. Without a path none is read: a deployment of one cluster needs no register."""
    register = Register(path)
    register.ssm.put("home", region="us-east-1")

    assert register.adapters.clusters["home"].region == "eu-west-1"
    assert register.runtime.clusters == ("home",)
    assert register.samples == ["journeyman_cluster_register_errors_total"] * reads
    assert register.ssm.reads == reads


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[]",
        '{"region": 5}',
        '{"regoin": "eu-west-1", "region": "eu-west-1"}',
        '{"name": "other", "region": "eu-west-1"}',
        '{"a":' * 5000,
    ],
)
def test_broken_entry_is_skipped_and_reported(register, value):
    """The other clusters are served; messages for this one are retried until a user corrects it."""
    register.ssm.put("good")
    register.ssm.values[f"{PATH}/broken"] = value

    assert register.runtime.clusters == ("good", "home")
    with pytest.raises(ConfigurationError) as caught:
        register.runtime.settings_of("broken")
    assert not isinstance(caught.value, UnknownClusterError)
    ((level, message, fields),) = register.lines
    assert (level, fields["parameter"]) == ("error", f"{PATH}/broken")
    assert "broken" in message
    assert fields["to_do"]
    assert register.samples == ["journeyman_cluster_register_errors_total"]


def test_unreadable_register_loses_no_message(register):
    """Clusters of the environment are served, others are retried until SSM answers; later its last answer counts."""
    register.ssm.fails = CloudUnavailableError("SSM does not answer")
    for _ in range(3):
        assert register.runtime.clusters == ("home",)
        with pytest.raises(CloudUnavailableError):
            register.runtime.settings_of("emea")
        register.clock.advance(16)

    register.ssm.fails = None
    register.ssm.put("emea")
    register.clock.advance(16)
    assert register.runtime.settings_of("emea").cluster_name == "emea"

    register.ssm.fails = CloudUnavailableError("SSM does not answer")
    register.clock.advance(301)
    assert register.runtime.clusters == ("emea", "home")
    register.clock.advance(16)
    with pytest.raises(UnknownClusterError):
        register.runtime.settings_of("apac")
