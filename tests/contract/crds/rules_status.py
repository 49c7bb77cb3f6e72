"""Rules of statuses, which are written separately from specs.

Conditions are not included: the API server validates them strictly, the models accept what any controller wrote.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.contract.crds.edge_values import QUANTITIES_BAD, QUANTITIES_GOOD, TIMES_BAD, TIMES_GOOD
from tests.contract.crds.rule import Rule, rule_of


def status_rules() -> Iterator[Rule]:
    """Status rules of every kind."""
    yield from _node_rules()
    yield from _node_class_rules()
    yield from _own_rules()


def _node_rules() -> Iterator[Rule]:
    counts = (0, 5, 2**31 - 1, None)
    yield rule_of("NodePool", "status.nodes")(good=counts, bad=("5", 1.5, True, 2**31))
    generation = "status.nodeClassObservedGeneration"
    yield rule_of("NodePool", generation)(good=(*counts, 3.0, 2**40), bad=("5", 1.5, True, 2**63))
    for kind, field in (("NodePool", "resources"), ("NodeClaim", "capacity"), ("NodeClaim", "allocatable")):
        good = ({}, None, *({"cpu": amount} for amount in QUANTITIES_GOOD))
        bad = ([], *({"cpu": amount} for amount in QUANTITIES_BAD))
        yield rule_of(kind, f"status.{field}")(good=good, bad=bad, with_few_values=field == "allocatable")
    for field in ("nodeName", "providerID", "imageID"):
        yield rule_of("NodeClaim", f"status.{field}")(good=("", "a", None), bad=(1, []))
    yield rule_of("NodeClaim", "status.lastPodEventTime")(good=(*TIMES_GOOD, None), bad=TIMES_BAD)


def _node_class_rules() -> Iterator[Rule]:
    kind = "EC2NodeClass"
    subnet = {"id": "subnet-1", "zone": "a"}
    yield rule_of(kind, "status.subnets")(
        good=([], None, [subnet], [{**subnet, "zoneID": "use1-az1"}]),
        bad=([{"id": "subnet-1"}], [{"zone": "a"}], [None], {}, [{**subnet, "zone": 1}]),
    )
    yield rule_of(kind, "status.securityGroups")(good=([{"id": "sg-1"}],), bad=([{}], [{"id": None}], [{"name": "a"}]))
    image = {"id": "ami-1", "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]}
    yield rule_of(kind, "status.amis")(
        good=([image], [{**image, "deprecated": True, "requirements": []}]),
        bad=([{"id": "ami-1"}], [{**image, "deprecated": "yes"}], [{**image, "requirements": [{"key": "a"}]}]),
    )
    reservation = {
        "id": "cr-1", "availabilityZone": "a", "instanceMatchCriteria": "open", "instanceType": "m5.large", "ownerID": "123456789012",
    }  # fmt: skip
    yield rule_of(kind, "status.capacityReservations")(
        good=(
            [reservation],
            [{**reservation, "state": "expiring", "reservationType": "capacity-block", "endTime": TIMES_GOOD[0]}],
        ),
        bad=(
            *([{**reservation, "id": v}] for v in ("1", None)),
            [{**reservation, "ownerID": "1"}],
            [{**reservation, "state": "gone"}],
            [{**reservation, "reservationType": "mine"}],
            [{**reservation, "interruptible": "no"}],
            [{**reservation, "endTime": "tomorrow"}],
        ),
    )
    yield rule_of(kind, "status.instanceProfile")(good=("", "p", None), bad=(1,))


def _own_rules() -> Iterator[Rule]:
    kind = "NodeDisruption"
    yield rule_of(kind, "status.phase")(good=("Proposed", "RolledBack", None), bad=("proposed", "", "Done", 1))
    messages = ([], None, ["x" * 4096], ["m"] * 100)
    yield rule_of(kind, "status.messages")(good=messages, bad=(["x" * 4097], ["m"] * 101, [1], [None], "m"))
    for field in ("startedAt", "finishedAt"):
        yield rule_of(kind, f"status.{field}")(
            good=(*TIMES_GOOD, None), bad=TIMES_BAD, with_few_values=field == "finishedAt"
        )
    kind = "FleetPlan"
    yield rule_of(kind, "status.phase")(good=("Running", "Superseded", None), bad=("running", "", 1))
    moves = ([], None, [{"name": "a", "state": "Done", "nodeDisruption": "underutilized-1"}])
    yield rule_of(kind, "status.moves")(good=moves, bad=([{"name": "a"}], [{"name": "a", "state": "Lost"}], "a"))
    yield rule_of(kind, "status.done")(good=(0, 7, None), bad=(-1, "1", 1.5))
    kind = "OfferingState"
    offering = {"instanceType": "m5.large", "zone": "a", "capacityType": "spot", "until": TIMES_GOOD[0]}
    yield rule_of(kind, "status.unavailable")(
        good=([], None, [offering], [offering, {**offering, "zone": "b"}], [{**offering, "reason": "", "failures": 7}]),
        bad=(
            [offering, offering],
            *([{**offering, field: None}] for field in offering),
            *([{**offering, field: ""}] for field in offering),
            *([{**offering, "failures": n}] for n in (0, -1, "1", 1.5)),
            [{**offering, "reason": "x" * 1025}],
            [{**offering, "zone": "z" * 254}],
            [None],
            {},
        ),
    )
    yield rule_of(kind, "status.prices")(
        good=({}, None, {"source": "api"}, {"currency": "CNY", "estimated": True, "onDemand": {"m5.large": "0.096"}}),
        bad=(
            [],
            {"source": "s" * 254},
            {"message": 1},
            {"currency": "EURO"},
            {"estimated": "yes"},
            {"onDemand": {"m5.large": 0.096}},
            {"onDemand": {"m5.large": "0" * 33}},
        ),
    )
    yield rule_of(kind, "status.prices.spotRefreshedAt")(good=(TIMES_GOOD[0],), bad=(TIMES_BAD[0], 1))
