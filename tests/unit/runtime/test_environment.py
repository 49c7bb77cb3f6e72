"""The environment is read once and checked; a mistake names its variable."""

import subprocess
import sys
from datetime import timedelta
from fractions import Fraction

import pytest

from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.kube.clusters import AckAccess, CceAccess, EksAccess
from journeyman.runtime.environment import read_environment
from journeyman.steps.context import MinValuesPolicy

MINIMAL = {
    "JOURNEYMAN_CLUSTERS": '[{"name": "dev", "region": "eu-west-1"}, {"name": "prod", "region": "us-east-1"}]',
    "JOURNEYMAN_PROVISION_QUEUE_URL": "https://sqs/provision.fifo",
    "JOURNEYMAN_TERMINATE_QUEUE_URL": "https://sqs/terminate.fifo",
    "JOURNEYMAN_CONSOLIDATE_QUEUE_URL": "https://sqs/consolidate.fifo",
    "JOURNEYMAN_REQUEUE_QUEUE_URL": "https://sqs/wake",
}


@pytest.mark.parametrize(
    ("cloud", "handlers", "heavy"),
    [
        ("aws", "provision api", "moto rich scipy kubernetes aws_xray_sdk .core.api.crds"),
        (
            "alibaba",
            "provision api",
            "mns boto3 alibabacloud_tea_openapi .runtime.aws .cloud.alibaba.smq_queue",
        ),
        (
            "huawei",
            "provision api delay",
            "huaweicloudsdkcore boto3 .runtime.aws .runtime.huawei .cloud.huawei.function_queue",
        ),
    ],
)
def test_importing_a_handler_reads_no_environment_and_no_sdk(cloud, handlers, heavy):
    """The platforms import handlers before the first event; SDKs are imported when they are needed."""
    imports = "".join(f"import functions.{cloud}.{name};" for name in handlers.split())
    modules = [
        f"journeyman{name}" if name.startswith(".") else name for name in f"{heavy} journeyman_simulator".split()
    ]
    code = f"import sys;{imports}print([m for m in {modules} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_defaults_are_karpenters():
    environment = read_environment(MINIMAL)

    assert set(environment.clusters) == {"dev", "prod"}
    assert environment.clusters["dev"].access == EksAccess()
    assert environment.queues[Step.TERMINATE] == "https://sqs/terminate.fifo"
    assert environment.settings["dev"].batch_max_duration == timedelta(seconds=10)
    assert environment.settings["dev"].feature_gates.reserved_capacity is True
    assert environment.settings["dev"].cluster_state_observability
    assert environment.vm_memory_overhead_percent == Fraction(75, 1000)


@pytest.mark.parametrize(("given", "used"), [({}, "0.05"), ({"VM_MEMORY_OVERHEAD_PERCENT": "0"}, "0")])
def test_other_clouds_have_their_own_memory_overhead(given, used):
    """Unless it is set: also an explicit 0 counts."""
    environment = read_environment({**MINIMAL, **given}, has_sqs=False)

    assert environment.memory_overhead(default=Fraction("0.05")) == Fraction(used)


def test_one_deployment_serves_many_clusters_on_several_clouds():
    """The template's own cluster and further ones are two lists, of which a user edits only the second."""
    more = """[
        {"name": "elsewhere", "region": "us-east-1",
         "access": {"kind": "eks", "roleArn": "arn:aws:iam::111122223333:role/journeyman", "endpoint": "private"}},
        {"name": "hangzhou", "region": "cn-hangzhou", "access": {"kind": "ack", "clusterId": "c1", "endpoint": "private"}},
        {"name": "beijing", "region": "cn-north-4", "access": {"kind": "cce", "clusterId": "c2", "projectId": "p", "days": 7}}
    ]"""
    environment = read_environment({**MINIMAL, "JOURNEYMAN_MORE_CLUSTERS": more})

    assert set(environment.settings) == set(environment.clusters) == {"dev", "prod", "elsewhere", "hangzhou", "beijing"}
    assert environment.clusters["hangzhou"].access == AckAccess(cluster_id="c1", endpoint="private", minutes=180)
    assert environment.clusters["beijing"].access == CceAccess(cluster_id="c2", project_id="p", days=7)


def test_karpenters_variables_are_understood():
    """A user can copy the settings of Karpenter's chart by name."""
    settings = read_environment(
        {
            **MINIMAL,
            "FEATURE_GATES": "SpotToSpotConsolidation=true,ReservedCapacity=False,SomethingNew=true",
            "MIN_VALUES_POLICY": "BestEffort",
            "BATCH_IDLE_DURATION": "2s",
            "DISABLE_CLUSTER_STATE_OBSERVABILITY": "TRUE",
        }
    ).settings["prod"]

    assert settings.feature_gates.spot_to_spot_consolidation is True
    assert settings.feature_gates.reserved_capacity is False
    assert settings.min_values_policy is MinValuesPolicy.BEST_EFFORT
    assert settings.batch_idle_duration == timedelta(seconds=2)
    assert not settings.cluster_state_observability


@pytest.mark.parametrize(
    ("variable", "value", "field", "read"),
    [
        # then only the boot of a replacement and its image pulls count
        ("CONSOLIDATION_EVICTION_COST", "0", "eviction_cost", 0.0),
        ("CONSOLIDATION_EVICTION_COST", "0.25", "eviction_cost", 0.25),
        ("SCHEDULER_CONFIG", " ", "default_spread", ()),
    ],
)
def test_value_may_be_none_or_blank(variable, value, field, read):
    assert getattr(read_environment({**MINIMAL, variable: value}).settings["prod"], field) == read


@pytest.mark.parametrize(
    ("variable", "form"), [("FEATURE_GATES", "'NodeRepair=true'"), ("BATCH_MAX_DURATION", "'10s'")]
)
def test_valid_form_is_an_example_or_the_default(variable, form):
    """The default of a variable may be empty, which is no form to give it."""
    with pytest.raises(ConfigurationError) as caught:
        read_environment({**MINIMAL, variable: "x=y"})
    assert caught.value.context["to_do"] == f"give it the form {form}"


def test_default_spread_constraints_are_read_from_yaml():
    """The format is kube-scheduler's."""
    text = "podTopologySpread:\n  defaultConstraints:\n  - {maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}"
    (constraint,) = read_environment({**MINIMAL, "SCHEDULER_CONFIG": text}).settings["prod"].default_spread

    assert (constraint.max_skew, constraint.topology_key) == (2, "rack")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("JOURNEYMAN_CLUSTERS", ""),
        ("JOURNEYMAN_CLUSTERS", "dev"),
        ("JOURNEYMAN_CLUSTERS", "[]"),
        ("JOURNEYMAN_CLUSTERS", '[{"name": "dev"}]'),
        ("JOURNEYMAN_CLUSTERS", '[{"name": "dev", "region": "x", "access": {"kind": "ssh"}}]'),
        ("JOURNEYMAN_CLUSTERS", '[{"name": "dev", "region": "x", "access": {"kind": "eks", "roleArn": "admin"}}]'),
        ("JOURNEYMAN_MORE_CLUSTERS", '[{"name": "a", "region": "x", "access": {"kind": "ack", "clusterID": "c1"}}]'),
        (
            "JOURNEYMAN_MORE_CLUSTERS",
            '[{"name": "a", "region": "x", "access": {"kind": "ack", "clusterId": "c1", "minutes": 5}}]',
        ),
        ("JOURNEYMAN_MORE_CLUSTERS", '[{"name": "dev", "region": "x"}]'),
        ("JOURNEYMAN_REQUEUE_QUEUE_URL", ""),
        ("FEATURE_GATES", "NodeRepair=perhaps"),
        ("PREFERENCE_POLICY", "Maybe"),
        ("BATCH_MAX_DURATION", "soon"),
        ("CONSOLIDATION_EVICTION_COST", "-0.01"),
        ("CONSOLIDATION_EVICTION_COST", "nan"),
        ("CONSOLIDATION_EVICTION_COST", "inf"),
        ("VM_MEMORY_OVERHEAD_PERCENT", "a lot"),
        ("RESERVED_ENIS", "1.5"),
        ("SCHEDULER_CONFIG", "{podTopologySpread: ["),
        ("SCHEDULER_CONFIG", "podTopologySpread: {defaultConstraint: []}"),
    ],
)
def test_invalid_value_names_its_variable_and_a_valid_form(variable, value):
    with pytest.raises(ConfigurationError) as caught:
        read_environment({**MINIMAL, variable: value})

    assert variable in caught.value.context["variable"]
    assert caught.value.context["to_do"]
