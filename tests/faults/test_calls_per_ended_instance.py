"""How many requests to the cloud it takes to end instances, from the drain to the last finalizer, with the deployed functions."""

from collections import Counter

import pytest

from journeyman_simulator.faults.fault_scenario import Deploy, FaultScenario, Scale, ScenarioSetup
from journeyman_simulator.faults.scenario_clouds import CLOUDS
from journeyman_simulator.faults.scenario_run import run_scenario

NODES = 30
INSTANCE_APIS = ("ec2", "ecs", "cce")
DELETIONS = {"aws": "ec2 TerminateInstances", "alibaba": "ecs DeleteInstances", "huawei": "cce DeleteNode"}


def calls_of(result):
    """Return the requests of the steps that end nodes, by service and operation, those of ten minutes without work included."""
    sites = ((*site.partition(": ")[::2], number) for site, number in result.coverage.calls.items())
    ended = Counter()
    for step, call, number in sites:
        if step in ("terminate", "interrupt") and call.startswith(INSTANCE_APIS):
            ended[call] += number
    return ended


@pytest.mark.parametrize("cloud", CLOUDS.values(), ids=lambda cloud: cloud.name)
def test_ended_instance_takes_two_requests_at_most(cloud):
    """The deletion is one request for all where the cloud has such a one, and is not repeated while they shut down."""
    operations = (
        Deploy(at_seconds=0, app="a", replicas=NODES, cpu_millicores=1800),
        Scale(at_seconds=300, app="a", replicas=0),
    )
    setup = ScenarioSetup(cloud=cloud.name, types=cloud.large_types[:1])
    result = run_scenario(FaultScenario(seed=1, setup=setup, operations=operations))
    calls = calls_of(result)

    assert result.violations == ()
    assert calls[DELETIONS[cloud.name]] == (NODES if cloud.name == "huawei" else 1)
    assert sum(calls.values()) <= 2 * NODES, calls
