"""`cloud.launching`: the errors of launches, the instance to adopt, and a warning of a fallback to on-demand."""

import logging
from datetime import timedelta

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from journeyman.cloud.aws.fleet_launch import LIMITS
from journeyman.cloud.fault_rules import FaultRule
from journeyman.cloud.launching import Launcher, outcome_of, types_to_launch, usable_and_oldest_first
from journeyman.core.api import labels
from journeyman.core.api.launch_faults import FaultScope
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.state import NodeClassState
from journeyman.errors import CloudProviderError, CreateError, InsufficientCapacityError, RateLimitedError
from journeyman.ports import Instance, LaunchRequest
from tests.helpers.launching import launch_request
from tests.unit.cloud.aws.conftest import START, claim
from tests.unit.cloud.test_launch_filter import a_type


class Launching(Launcher):
    """A launcher of a cloud with one known error code."""

    def launch_one(self, request):
        raise NotImplementedError

    def launched(self, request, instance):
        raise NotImplementedError

    def launch_rule(self, error):
        is_quota = error.context.get("code") == "Quota"
        return FaultRule(
            scope=FaultScope.ACCOUNT if is_quota else FaultScope.NODE_CLASS,
            reason="QuotaExceeded" if is_quota else "InvalidNodeClass",
            meaning="the quota is used up" if is_quota else "the NodeClass is wrong",
            remedy="Request a higher one" if is_quota else "Correct it",
        )


def test_throttled_launch_is_no_create_error():
    """Every other error gets a reason for the Launched condition, and keeps its context for the log."""
    launcher, throttled = Launching(None, 1), RateLimitedError("slow down")
    assert launcher.as_create_error(throttled, "launching") is throttled

    refused = CloudProviderError("no more servers", code="Quota", condition_reason="not this one")
    failed = launcher.as_create_error(refused, "launching")

    assert isinstance(failed, CreateError)
    assert failed.condition_reason == "QuotaExceeded"
    assert failed.message == "launching: the quota is used up: no more servers. Request a higher one"
    assert failed.context["code"] == "Quota"
    assert failed.__cause__ is refused


def an_instance(name, *, state="running", age_seconds=60):
    launched_at = START - timedelta(seconds=age_seconds)
    return Instance(
        provider_id=name, instance_type="m5.large", zone="a", capacity_type="spot", state=state, launched_at=launched_at
    )


@pytest.mark.parametrize(
    ("instances", "adopted"),
    [
        ([an_instance("young"), an_instance("old", age_seconds=61)], "old"),
        ([an_instance("stopped", state="stopped", age_seconds=600), an_instance("running")], "running"),
        ([an_instance("ending", state="shutting-down", age_seconds=600), an_instance("new", state="pending")], "new"),
        ([an_instance("b"), an_instance("a")], "a"),
        ([an_instance("young", state="stopped"), an_instance("old", state="stopped", age_seconds=61)], "old"),
    ],
)
def test_oldest_instance_that_runs_or_starts_is_adopted(instances, adopted):
    """Of two that a NodeClaim has; garbage collection deletes the other one."""
    assert min(instances, key=usable_and_oldest_first).provider_id == adopted


@pytest.mark.parametrize(
    ("capacity_types", "number", "spot_price", "warns"),
    [
        (("spot", "on-demand"), 4, None, True),
        (("spot", "on-demand"), 5, None, False),
        (("spot", "on-demand"), 4, 0.01, False),
        (("on-demand",), 4, None, False),
    ],
)
def test_inflexible_fallback_to_on_demand_is_a_warning(caplog, capacity_types, number, spot_price, warns):
    """Spot was allowed and has no offering, and fewer than five types are left, as in Karpenter."""
    types = tuple(a_type(f"m{n}.large", 0.1, spot=spot_price) for n in range(number))
    request = launch_request(
        "web-1", uid="u", types=[t.name for t in types], capacity_types=capacity_types,
        node_class={"kind": "EC2NodeClass", "group": "karpenter.k8s.aws", "raw": {}}, instance_types=types,
    )  # fmt: skip

    with caplog.at_level(logging.WARNING):
        capacity_type, launched = types_to_launch(request, LIMITS)

    assert (capacity_type, len(launched)) == ("spot" if spot_price else "on-demand", number)
    assert ("falling back to on-demand with fewer than 5 instance types" in caplog.text) is warns


MANY_TYPES = NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="Exists", min_values=2)


@pytest.mark.parametrize(
    ("types", "requirements", "kind"),
    [
        ((a_type("m5.large", 0.1),), (MANY_TYPES,), CreateError),
        ((a_type("m5.large", 0.1), a_type("c5.large", 0.1, unavailable=[("a", "on-demand")])), (MANY_TYPES,), InsufficientCapacityError),
        ((a_type("m5.large", 0.1, unavailable=[("a", "on-demand")]),), (), InsufficientCapacityError),
        ((), (MANY_TYPES,), InsufficientCapacityError),
    ],
)  # fmt: skip
def test_launch_without_types_waits_unless_too_few_would_ever_suit(types, requirements, kind):
    """A new plan may avoid what is unavailable; minValues that too few types have are a condition."""
    state = NodeClassState(
        name="default", uid="u", kind="EC2NodeClass", group="karpenter.k8s.aws", generation=1, ready=True, raw={}
    )
    asking = claim(spec={"requirements": to_builtins(requirements)})
    with pytest.raises(kind) as caught:
        types_to_launch(LaunchRequest(claim=asking, node_class=state, instance_types=types), LIMITS)

    assert type(caught.value) is kind
    assert getattr(caught.value, "condition_reason", None) == ("MinValuesNotMet" if kind is CreateError else None)


def test_launched_claim_gets_the_labels_that_its_type_decides():
    """A label with several values, or with none, is the node's own to say; the launch's labels come last."""
    decided = {"size": ("large",), "flex": ("a", "b"), "left-out": ("x",), labels.ARCH: ("amd64",)}
    requirements = [NodeSelectorRequirement(key=key, operator="In", values=values) for key, values in decided.items()]
    requirements.append(NodeSelectorRequirement(key="gpu", operator="NotIn", values=("x",)))
    capacity = {"cpu": 2000, "pods": 20, "left-out": 1, "gpu": 0}
    chosen = replace(a_type("m5.large", 0.1), requirements=tuple(requirements), capacity=capacity)
    request = launch_request(
        "web-1", uid="u", types=["m5.large"], capacity_types=["spot"], instance_types=(a_type("c5.large", 0.1), chosen),
        node_class={"kind": "EC2NodeClass", "group": "karpenter.k8s.aws", "raw": {}},
    )  # fmt: skip
    outcome = outcome_of(
        request, an_instance("i-1"), more_labels={"size": "of the launch"}, annotations={"hash": "abc", "empty": ""},
        left_out=["left-out"],
    )  # fmt: skip

    assert outcome.labels == {
        "size": "of the launch",
        labels.ARCH: "amd64",
        labels.INSTANCE_TYPE: "m5.large",
        labels.ZONE: "a",
        labels.CAPACITY_TYPE: "spot",
    }
    assert outcome.capacity == {"cpu": "2", "pods": "20"}
    assert outcome.annotations == {"hash": "abc"}
