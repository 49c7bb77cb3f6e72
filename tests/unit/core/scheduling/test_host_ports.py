"""Host ports: which of them conflict on one node."""

from __future__ import annotations

import pytest

from journeyman.core.scheduling.pod_classes import HostPort, host_ports
from tests.helpers.builders import a_pod


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
@pytest.mark.karpenter("scheduling/hostportusage", it="identical entries match")
@pytest.mark.karpenter(
    "scheduling/hostportusage",
    it="if any one IP has an unspecified IPv4 or IPv6 address, they match",
)
@pytest.mark.karpenter("scheduling/hostportusage", it="mismatched protocols don't match")
@pytest.mark.karpenter("scheduling/hostportusage", it="mismatched ports don't match")
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
