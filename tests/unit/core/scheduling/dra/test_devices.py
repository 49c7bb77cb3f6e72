"""Device pools as one node sees them, and the capacity that a request consumes of a shared device."""

from __future__ import annotations

import msgspec
import pytest

from journeyman.core.api.dra import DeviceCapacity
from journeyman.core.api.objects import NodeSelector
from journeyman.core.scheduling.dra.devices import ConsumableCapacity, PublishedPools, accessible_nodes_of
from journeyman.core.scheduling.dra.requests import MatchAttributeConstraint, RequestAlternative
from tests.helpers.device_allocation import with_policy
from tests.helpers.devices import a_slice, table

GIB = 2**30 * 10**9


@pytest.mark.parametrize(
    ("policy", "requested", "consumed"),
    [
        ("", None, 40),
        ("", 7, 7),
        ("8Gi", None, 8),
        ("8Gi of 10Gi,20Gi", 11, 20),
        ("8Gi of 10Gi,20Gi", 20, 20),
        ("8Gi of 10Gi,20Gi", 21, None),
        ("8Gi min 5Gi", 3, 5),
        ("8Gi min 5Gi", 5, 5),
        ("8Gi min 5Gi", 6, 6),
        ("8Gi min 5Gi step 4Gi", 6, 9),
        ("8Gi min 5Gi step 4Gi", 9, 9),
        ("8Gi max 12Gi", 12, 12),
        ("8Gi min 5Gi step 4Gi max 12Gi", 10, None),
    ],
)
def test_consumed_capacity_is_rounded_up_by_the_request_policy(policy, requested, consumed):
    """The policy has a default, valid values, or a range with steps."""
    text = "gpu-0+memory=40Gi"
    published = (with_policy(text, policy) if policy else with_policy(text, "40Gi"))[0]["capacity"]["memory"]

    found = ConsumableCapacity.of(msgspec.convert(published, DeviceCapacity))

    expected = None if consumed is None else consumed * GIB
    assert found.consumed(None if requested is None else requested * GIB) == expected


def test_node_sees_its_own_devices_and_those_of_all_nodes():
    """It does not see the devices of other nodes."""
    slices = [
        *(a_slice(name, "gpu-0..1", node=f"node-{name}") for name in "ab"),
        a_slice("fabric", "gpu-0", allNodes=True),
    ]
    published = PublishedPools(slices, {"node-a", "node-b"})

    seen = {name: [pool.name for pool in published.seen_from(name)] for name in ("node-a", "node-c", "")}

    assert seen == {"node-a": ["fabric", "node-a"], "node-c": ["fabric"], "": ["fabric"]}


@table(
    "terms",
    {
        "none": [],
        "two": [{}, {}],
        "field": [{"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["a"]}]}],
        "operator": [{"matchExpressions": [{"key": "zone", "operator": "Near", "values": ["a"]}]}],
    },
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
