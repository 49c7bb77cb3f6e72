"""Host ports: which of them conflict on one node, and which are in use on existing nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.bulk_scheduling import schedule_in_bulk
from journeyman.core.scheduling.pod_classes import HostPort, host_ports
from journeyman.core.scheduling.problem import ClusterInputs, prepare_task
from journeyman.core.scheduling.results import Options
from journeyman.core.scheduling.scheduler import pods_to_schedule, solve
from journeyman.core.scheduling.sequential import schedule_sequentially
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import a_daemon_set, a_node, a_pod, a_running_claim, a_snapshot


def a_port(port=80, protocol="TCP", address=""):
    """A host port, by default on every address."""
    return HostPort(port=port, protocol=protocol, address=address)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (a_port(), a_port(), True),
        (a_port(), a_port(81), False),
        (a_port(), a_port(protocol="UDP"), False),
        (a_port(address="10.0.0.1"), a_port(address="10.0.0.1"), True),
        (a_port(address="10.0.0.1"), a_port(address="10.0.0.2"), False),
        (a_port(address="10.0.0.1"), a_port(address="0.0.0.0"), True),
        (a_port(address="10.0.0.1"), a_port(address="::"), True),
        (a_port(address="10.0.0.1"), a_port(), True),
    ],
)
def test_host_ports_conflict_if_port_protocol_and_address_match(first, second, expected):
    """The order does not matter; no address means all addresses."""
    assert first.conflicts(second) is expected
    assert second.conflicts(first) is expected


def test_host_ports_of_a_pod_are_those_of_its_containers():
    """Each counts once; container ports and ports of init containers do not count."""
    ports = [
        {"hostPort": 80},
        {"hostPort": 80, "protocol": "TCP"},
        {"containerPort": 9},
        {"hostPort": 53, "protocol": "UDP"},
    ]
    spec = {
        "containers": [{"name": "c", "ports": ports}],
        "initContainers": [{"name": "i", "ports": [{"hostPort": 99}]}],
    }

    assert host_ports(a_pod("p", spec=spec)) == (a_port(53, "UDP"), a_port(80))


def listening(port):
    """Return the containers of a pod with this host port."""
    return [{"name": "c", "ports": [{"containerPort": port, "hostPort": port}]}]


@pytest.fixture
def cluster():
    """One node in zone a, no capacity for others, daemons that do not run yet, and a pending pod for each port.

    Port 80 is that of a daemon for all nodes, 81 that of a daemon for zone b, and 82 that of a running pod.
    """
    return a_snapshot(
        nodes=(a_node(),),
        claims=(a_running_claim(),),
        daemon_sets=(
            a_daemon_set("everywhere", containers=listening(80)),
            a_daemon_set("elsewhere", containers=listening(81), nodeSelector={labels.ZONE: "b"}),
        ),
        pods=(
            *(a_pod(f"p{port}", cpu="100m", spec={"containers": listening(port)}) for port in (80, 81, 82, 83)),
            a_pod("running", cpu="100m", spec={"containers": listening(82)}, node="node-default-1"),
        ),
    )


def schedule_one_by_one(task):
    """Return the solution of the sequential scheduler."""
    return schedule_sequentially(task.problem, task.initial_solution())


@pytest.mark.parametrize("schedule", [schedule_in_bulk, schedule_one_by_one])
def test_ports_of_daemons_that_have_not_started_are_in_use_on_existing_nodes(cluster, schedule):
    """Both schedulers leave the pods with the ports of the daemon and of the running pod unscheduled."""
    task = prepare_task(ClusterInputs.of(cluster, Catalogue({}), Options()), pods_to_schedule(cluster), frozenset())

    solution = schedule(task)

    scheduled = [task.problem.rows[row] for pods in solution.on_existing.values() for row, _ in pods]
    assert {port.port for row in scheduled for port in row.ports} == {81, 83}


def test_plan_that_leaves_ports_to_daemons_passes_verification(cluster):
    """The verifier accepts the pods that were scheduled, and rejects the one that takes the daemon's port."""
    catalogue, pods = Catalogue({}), pods_to_schedule(cluster)
    results = solve(cluster, catalogue)
    greedy = replace(
        results,
        existing={"node-default-1": ("default/p80", "default/p81", "default/p83")},
        pod_errors={"default/p82": results.pod_errors["default/p82"]},
    )

    assert results.existing == {"node-default-1": ("default/p81", "default/p83")}
    assert verify_strictly(cluster, catalogue, results, pods=pods) == ()
    assert [str(defect) for defect in verify_strictly(cluster, catalogue, greedy, pods=pods)] == [
        "node node-default-1: host port 80/TCP of pod default/p80 is taken by its daemons"
    ]
