"""Device pools as one node sees them, and the capacity that a request consumes of a shared device."""

from __future__ import annotations

import msgspec
import pytest

from journeyman.core.api.dra import DeviceCapacity
from journeyman.core.api.objects import NodeSelector
from journeyman.core.scheduling.dra.devices import (
    ConsumableCapacity,
    PublishedPools,
    accessible_nodes_of,
)
from journeyman.core.scheduling.dra.requests import MatchAttributeConstraint, RequestAlternative
from tests.helpers.devices import a_slice, gpus

GIB = 2**30 * 10**9


def capacity(policy=None):
    """Return a capacity of 40Gi with this request policy."""
    found = msgspec.convert({"value": "40Gi", **({"requestPolicy": policy} if policy else {})}, DeviceCapacity)
    return ConsumableCapacity.of(found)


@pytest.mark.parametrize(
    ("policy", "requested", "consumed"),
    [
        (None, None, 40),
        (None, 7, 7),
        ({"default": "8Gi"}, None, 8),
        ({"validValues": ["10Gi", "20Gi"]}, 11, 20),
        ({"validValues": ["10Gi", "20Gi"]}, 21, None),
        ({"validRange": {"min": "5Gi"}}, 3, 5),
        ({"validRange": {"min": "5Gi"}}, 6, 6),
        ({"validRange": {"min": "5Gi", "step": "4Gi"}}, 6, 9),
        ({"validRange": {"min": "5Gi", "step": "4Gi"}}, 9, 9),
        ({"validRange": {"min": "0", "max": "12Gi"}}, 12, 12),
        ({"validRange": {"min": "5Gi"}}, 5, 5),
        ({"validValues": ["10Gi", "20Gi"]}, 20, 20),
        ({"validRange": {"min": "5Gi", "step": "4Gi", "max": "12Gi"}}, 10, None),
    ],
)
def test_consumed_capacity_is_rounded_up_by_the_request_policy(policy, requested, consumed):
    """The policy has a default, valid values, or a range with steps."""
    found = capacity(policy).consumed(None if requested is None else requested * GIB)

    assert found == (None if consumed is None else consumed * GIB)


def test_node_sees_its_own_devices_and_those_of_all_nodes():
    """It does not see the devices of other nodes."""
    slices = [
        a_slice("a", gpus(2), node="node-a"),
        a_slice("b", gpus(2), node="node-b"),
        a_slice("fabric", gpus(1), allNodes=True),
    ]
    published = PublishedPools(slices, {"node-a", "node-b"})

    seen = {name: [pool.name for pool in published.seen_from(name)] for name in ("node-a", "node-c", "")}

    assert seen == {"node-a": ["fabric", "node-a"], "node-c": ["fabric"], "": ["fabric"]}


@pytest.mark.parametrize(
    "terms",
    [
        [],
        [{}, {}],
        [{"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["a"]}]}],
        [{"matchExpressions": [{"key": "zone", "operator": "Near", "values": ["a"]}]}],
    ],
    ids=["none", "two", "field", "operator"],
)
def test_unsupported_node_selector_of_devices_matches_no_node(terms):
    """The API allows one term with label expressions."""
    assert accessible_nodes_of(msgspec.convert({"nodeSelectorTerms": terms}, NodeSelector)) is None


@pytest.mark.parametrize(
    ("requests", "concerned"),
    [
        (None, ["gpu", "gpu/large", "nic"]),
        ({"gpu"}, ["gpu", "gpu/large"]),
        ({"gpu/large"}, ["gpu/large"]),
        ({"other"}, []),
    ],
)
def test_constraint_applies_to_requests_and_all_of_their_subrequests(requests, concerned):
    """The name of a request includes its subrequests; that of a subrequest includes no other."""
    constraint = MatchAttributeConstraint("model", frozenset(requests) if requests is not None else None)
    every = [RequestAlternative(name=name, device_class="c") for name in ("gpu", "gpu/large", "nic")]

    assert [alternative.name for alternative in every if constraint.concerns(alternative)] == concerned
