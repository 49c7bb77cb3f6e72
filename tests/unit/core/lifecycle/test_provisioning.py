"""Scheduling results become NodeClaims, and Events on pods."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import NO_STOCK, Catalogue, Unavailable
from journeyman.core.lifecycle.provisioning import (
    create_nodeclaims,
    failed_scheduling_events,
    next_offering_retry,
    scheduling_events,
)
from journeyman.core.plan import CreateObject, LaunchInstance, Requeue, Step
from journeyman.core.scheduling.nodeclaim_templates import NO_TYPES
from journeyman.core.scheduling.results import PlannedClaim, PodError, Results
from tests.helpers.builders import NOW, a_claim, a_launched_claim, a_pod, a_pool, a_snapshot, an_instance_type
from tests.helpers.small_clusters import table

STUCK = Results(pod_errors={"default/a": PodError(kind="unschedulable", message="x")})
SOON = NOW + timedelta(seconds=5)
PODS = (a_pod("a"), a_pod("b"))
PLANNED = PlannedClaim(
    node_pool="default",
    pods=("default/a", "default/b"),
    instance_types=("m.medium",),
    requirements=(NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="In", values=("m.medium",)),),
    requests={"cpu": 2000, "pods": 2},
    offering=("m.medium", "a", "on-demand"),
    price=0.19,
)
OUT = Unavailable(instance_type="m.small", zone="a", capacity_type="spot", until=NOW + timedelta(minutes=3))


def creation_chain(snapshot):
    (chain,) = create_nodeclaims(snapshot, [PLANNED], SOON).chains
    return chain


def test_planned_node_becomes_protected_claim_then_instance_then_requeue():
    """One chain has this order; the pods get their Events after it."""
    chain = creation_chain(a_snapshot(pods=PODS))
    create, launch, wake = chain.actions
    assert isinstance(create, CreateObject)
    assert create.body["metadata"]["finalizers"] == [labels.TERMINATION_FINALIZER]
    assert create.body["metadata"]["annotations"][labels.PLANNED_PODS] == "default/a:uid-a,default/b:uid-b"
    assert isinstance(launch, LaunchInstance)
    assert launch.claim == create.name
    assert wake == Requeue(step=Step.PROVISION, at=SOON, reason=f"NodeClaim {create.name} starts")
    assert [(e.reason, e.ref.name) for e in chain.events] == [("Nominated", "a"), ("Nominated", "b")]


def test_same_decision_names_its_claim_equally_and_a_later_one_not():
    """A repeated decision launches one node; a later plan for the same pods launches another one."""
    snapshot = a_snapshot(pods=PODS)
    name = creation_chain(snapshot).actions[0].name
    again = a_snapshot(pods=tuple(reversed(PODS)), now=NOW + timedelta(seconds=9))
    assert creation_chain(again).actions[0].name == name
    for later in ({"unavailable": (OUT,)}, {"claims": (a_claim(),)}):
        assert creation_chain(replace(snapshot, **later)).actions[0].name != name


def test_pods_get_events_with_their_node_or_the_reason_for_none():
    """Pods that still run on a terminating node get no Event; their replacements will be pending."""
    moving = a_pod("moving", node="old")
    snapshot = a_snapshot(pods=(*PODS, moving), claims=(a_launched_claim("n1"),))
    error = PodError(kind="unschedulable", message="no instance type is large enough")
    results = Results(existing={"n1": ("default/a", "default/moving")}, pod_errors={"default/b": error})
    events = (scheduling_events(snapshot, results) + failed_scheduling_events(snapshot, results)).events
    assert [(e.reason, e.ref.name, e.type) for e in events] == [
        ("Nominated", "a", "Normal"),
        ("FailedScheduling", "b", "Warning"),
    ]
    assert events[0].message == "Pod should schedule on: nodeclaim/n1"


def test_pod_event_has_the_remedy_however_many_nodepools_exist():
    """The API server rejects Events with messages of more than 1,024 characters."""
    reasons = "; ".join(f"NodePool pool-{n}: did not tolerate taint team=red:NoSchedule" for n in range(50))
    error = PodError(kind="unschedulable", message=f"{reasons}. Smallest change: tolerate", smallest_change="tolerate")
    (event,) = failed_scheduling_events(a_snapshot(pods=PODS), Results(pod_errors={"default/a": error})).events
    assert len(event.message) <= 1024
    assert "NodePool pool-0: did not" in event.message
    assert event.message.endswith("… Smallest change: tolerate")


UNUSABLE = {"mine": f"{NO_TYPES}: there is none with x In [y]", "unready": "EC2NodeClass default does not exist"}
NO_PRICE = "annotation journeyman.dev/node-surcharge: 'a lot' is not a price"
MANY = "Pod has 100 preferences"


@table(
    "results, reason, name, message",
    a_nodepool_has_no_instance_types_as_its_conditions_report_other_reasons=(
        Results(unusable_node_pools=UNUSABLE), "NoCompatibleInstanceTypes", "mine", "there is none with x In [y]"
    ),
    a_nodepool_is_used_without_its_invalid_annotation=(
        Results(warnings={"mine": NO_PRICE}), "InvalidAnnotation", "mine", NO_PRICE
    ),
    a_pod_has_too_many_preferences_but_not_one_that_no_longer_exists=(
        Results(pod_warnings={"default/a": MANY, "default/gone": MANY}), "TooManyPreferences", "a", MANY
    ),
)  # fmt: skip
def test_event_warns_of_what_does_not_keep_pods_from_being_scheduled(results, reason, name, message):
    """A user reads the Events of the NodePool or the pod."""
    snapshot = a_snapshot(pods=PODS, node_pools=(a_pool("mine"), a_pool("unready")))
    (event,) = scheduling_events(snapshot, results).events
    assert (event.reason, event.ref.name, event.type) == (reason, name, "Warning")
    assert message in event.message


def test_step_is_requeued_for_when_the_first_offering_expires():
    """That happens only if a pod is unschedulable; offerings that have expired do not count."""
    later = replace(OUT, zone="b", until=NOW + timedelta(minutes=9))
    over = replace(OUT, zone="c", until=NOW)
    snapshot, nothing = a_snapshot(unavailable=(later, OUT, over)), Catalogue(by_node_pool={})
    assert next_offering_retry(snapshot, STUCK, nothing) == OUT.until
    assert next_offering_retry(snapshot, Results(), nothing) is None
    assert next_offering_retry(a_snapshot(unavailable=(over,)), STUCK, nothing) is None


@pytest.mark.parametrize(("reason", "minutes"), [(NO_STOCK, 5), ("NoImage", None), ("", None)])
def test_step_is_requeued_for_when_the_cloud_lists_its_stock_again(reason, minutes):
    """No launch was refused: the cloud lists the only type as sold out."""
    sold = an_instance_type("m.small", cpu=2, memory_gib=4, price=0.1, zones=("a",))
    offerings = tuple(replace(o, available=not reason, unavailable_reason=reason) for o in sold.offerings)
    catalogue = Catalogue(by_node_pool={"default": (replace(sold, offerings=offerings),)})
    expected = NOW + timedelta(minutes=minutes) if minutes else None
    assert next_offering_retry(a_snapshot(), STUCK, catalogue) == expected
