"""NodeDisruptions: round trip, phases and validation."""

import pytest

from journeyman.core.api.model import parse
from journeyman.core.api.node_disruption import NodeDisruption, price_text
from journeyman.errors import InvalidObjectError

RAW = {
    "metadata": {"name": "consolidate-7f3k2", "creationTimestamp": "2026-03-01T12:00:00Z"},
    "spec": {
        "reason": "Underutilized",
        "decision": "replace",
        "method": "single-node",
        "candidates": [
            {
                "nodeClaim": "a",
                "nodeClaimUID": "u1",
                "node": "ip-1",
                "nodePool": "default",
                "price": price_text(0.192),
                "pods": ["d/p"],
            }
        ],
        "replacements": [{"name": "b", "instanceType": "m5.large", "price": "0.096"}],
        "savingPerHour": price_text(0.1 + 0.2 - 0.204),
    },
}


def test_prices_are_decimal_text_in_json():
    """The text has no floating-point noise."""
    disruption = parse(NodeDisruption, RAW)
    assert disruption.spec.saving_per_hour == "0.096"
    assert disruption.spec.saving == 0.096
    assert disruption.spec.candidates[0].price == "0.192"


def test_nodedisruption_round_trip():
    """The next run reads what this one wrote."""
    disruption = parse(NodeDisruption, RAW)
    assert parse(NodeDisruption, disruption.to_wire()) == disruption
    assert disruption.claims == ("a",)


@pytest.mark.parametrize(
    ("phase", "finished"),
    [
        *((phase, False) for phase in ("Proposed", "Validated", "Replacing", "Draining")),
        *((phase, True) for phase in ("Succeeded", "RolledBack", "Rejected", "Expired")),
    ],
)
def test_nodedisruption_is_finished_once_it_has_ended(phase, finished):
    """The next run continues those in other phases."""
    assert parse(NodeDisruption, {**RAW, "status": {"phase": phase}}).finished is finished


def test_nodedisruption_since_is_the_decision_time_or_the_creation_time():
    """It is the creation time if the spec has no `createdAt`."""
    assert parse(NodeDisruption, RAW).since == parse(NodeDisruption, RAW).metadata.creation_timestamp
    dated = {**RAW, "spec": {**RAW["spec"], "createdAt": "2026-03-01T11:59:58Z"}}
    assert parse(NodeDisruption, dated).since.second == 58


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"candidates": []}, r"spec\.candidates: .*at least 1 item"),
        ({"reason": "Bored"}, r"spec\.reason: Input should be"),
        ({"savingPerHour": "cheap"}, r"spec\.savingPerHour: String should match"),
        ({"savingPerHour": price_text(float("nan"))}, r"spec\.savingPerHour: String should match"),
        ({"savingPerHour": 0.5}, r"spec\.savingPerHour: Input should be a valid string"),
        ({"createdAt": "2026-03-01T11:59:58"}, r"spec\.createdAt: .* is not a time"),
    ],
)
def test_invalid_nodedisruption_is_rejected(spec, words):
    """It has no candidates, an unknown reason, an invalid price, or a time without a zone."""
    with pytest.raises(InvalidObjectError, match=words):
        parse(NodeDisruption, {**RAW, "spec": {**RAW["spec"], **spec}})
