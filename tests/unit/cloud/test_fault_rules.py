"""`cloud.fault_rules`: the object that a failed launch is blamed on, and why an instance ended."""

import pytest

from journeyman.cloud.fault_rules import FaultRule, one_per_object
from journeyman.core.api.launch_faults import FaultScope
from tests.unit.cloud.aws.conftest import claim

REF = {"nodeClassRef": {"name": "gpu"}}


def a_rule(scope, **more):
    return FaultRule(scope=scope, reason="Refused", meaning="it is refused", remedy="Mend it", **more)


@pytest.mark.parametrize(
    ("rule", "subnet", "object_at_fault"),
    [
        (a_rule(FaultScope.NODE_CLASS), "", "NodeClass gpu"),
        (a_rule(FaultScope.NODE_POOL), "", "NodePool default"),
        (a_rule(FaultScope.SUBNET), "subnet-1", "Subnet subnet-1"),
        (a_rule(FaultScope.SUBNET), "", None),
        (a_rule(FaultScope.ACCOUNT), "", "the account"),
        (a_rule(FaultScope.OFFERING), "subnet-1", None),
        (a_rule(FaultScope.OFFERING, node_class_only=True), "", "NodeClass gpu"),
        (a_rule(None), "subnet-1", None),
    ],
)
def test_fault_names_the_object(rule, subnet, object_at_fault):
    """An offering is no object, a subnet without an id is unknown, and a NodeClaim without a reference blames no NodeClass."""
    fault, unnamed = rule.fault(claim(spec=REF), "no", subnet), rule.fault(claim(), "no", subnet)
    assert (None if fault is None else str(fault.key)) == object_at_fault
    if fault is not None:
        assert (fault.reason, fault.text) == ("Refused", "it is refused: no. Mend it")
    assert (unnamed is None) is (object_at_fault in {None, "NodeClass gpu"})


@pytest.mark.parametrize(
    ("rule", "scope", "is_capacity"),
    [
        (a_rule(FaultScope.OFFERING), FaultScope.OFFERING, True),
        (a_rule(FaultScope.OFFERING, node_class_only=True), FaultScope.OFFERING, False),
        (a_rule(FaultScope.SUBNET), FaultScope.SUBNET, True),
        (a_rule(FaultScope.NODE_CLASS), FaultScope.NODE_CLASS, False),
        (a_rule(None), FaultScope.NODE_POOL, False),
    ],
)
def test_ended_instance_is_for_lack_of_capacity_or_an_objects_fault(rule, scope, is_capacity):
    """If it is no object's, its NodePool waits before it launches again."""
    failure = rule.build_failure("no")
    assert (failure.scope, failure.is_capacity) == (scope, is_capacity)
    assert (failure.reason, failure.message, failure.remedy) == ("Refused", "it is refused: no", "Mend it")


def test_first_fault_of_each_object_is_kept():
    faults = [
        rule.fault(claim(spec=REF), words)
        for rule, words in (
            (a_rule(FaultScope.NODE_POOL), "first"),
            (a_rule(FaultScope.OFFERING), "no object"),
            (a_rule(FaultScope.ACCOUNT), "first"),
            (a_rule(FaultScope.NODE_POOL), "second"),
        )
    ]

    assert [(str(fault.key), fault.message) for fault in one_per_object(faults)] == [
        ("the account", "it is refused: first"),
        ("NodePool default", "it is refused: first"),
    ]
