"""Instance status: a failed check forces the node's termination, a planned event drains it."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.health import next_status_check, terminate_impaired_instances
from journeyman.core.plan import Step
from journeyman.core.state import InstanceStatus
from tests.helpers.actions import done, patches, requeues
from tests.helpers.builders import NOW, ago, provider_id_of, stamp
from tests.helpers.fleets import a_fleet, a_member

TWO_MINUTES = timedelta(minutes=2)
LONG_AGO = ago(minutes=3)


def a_status(claim: str, category: str = "InstanceStatus", *, since=LONG_AGO) -> InstanceStatus:
    """Return a failed check."""
    return InstanceStatus(provider_id=provider_id_of(claim), category=category, name="reachability", since=since)


@pytest.mark.parametrize(
    ("category", "since", "goes", "by_force"),
    [
        ("InstanceStatus", ago(seconds=120), True, True),
        ("InstanceStatus", ago(seconds=119), False, False),
        ("SystemStatus", ago(seconds=120), True, True),
        ("SystemStatus", None, False, False),
        ("EventStatus", None, True, False),
        ("EventStatus", ago(seconds=-3600), True, False),
        ("EBSStatus", ago(hours=1), False, False),
    ],
)
def test_checks_count_after_two_minutes_and_planned_events_at_once(category, since, goes, by_force):
    """A node with a failed check is not drained; a planned event leaves time for a drain."""
    plan = terminate_impaired_instances(a_fleet(a_member("n")), [a_status("n", category, since=since)], TWO_MINUTES)
    assert done(plan) == ("delete NodeClaim n" if goes else "")
    assert any("annotations" in metadata for metadata in patches(plan, part="metadata")) is by_force


def test_termination_has_an_event_a_metric_and_requeues():
    """They are those of an interruption, plus a metric with the category of each failed check."""
    statuses = [a_status("n"), a_status("n", "SystemStatus"), a_status("n", "EventStatus", since=None)]

    plan = terminate_impaired_instances(a_fleet(a_member("n")), statuses, TWO_MINUTES)

    chain = plan.chains[0]
    grace, deletion = chain.actions
    assert grace.patch == {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: stamp(NOW)}}}
    assert (deletion.ref.name, deletion.ref.uid) == ("n", "uid-n")
    assert {(e.reason, e.type) for e in plan.events} == {("InstanceUnhealthy", "Warning")}
    assert {e.reason for e in chain.events} == {"TerminatingOnInterruption"}
    unhealthy = "karpenter_interruption_instance_status_unhealthy_total"
    categories = [(unhealthy, category) for category in ("EventStatus", "InstanceStatus", "SystemStatus")]
    counted = [(o.name, {**o.labels}.get("reason") or o.labels["category"]) for o in chain.observations]
    assert counted == [("karpenter_nodeclaims_disrupted_total", "instance_status"), *categories]
    assert requeues(plan).keys() == {Step.PROVISION, Step.TERMINATE}


def test_foreign_instances_and_terminating_nodes_are_ignored():
    """The checks are of the whole region, and still fail while an instance shuts down."""
    fleet = a_fleet(a_member("going", deleting=True), a_member("well"))
    plan = terminate_impaired_instances(fleet, [a_status("going"), a_status("foreign")], TWO_MINUTES)
    assert (plan.chains, plan.events) == ((), ())


def test_newly_failed_check_requeues_for_its_deadline():
    """For the earliest that is still to come: one whose deadline is now is handled in this run. Planned events have none."""
    statuses = [a_status(name, since=ago(seconds=s)) for name, s in (("a", 100), ("b", 30), ("c", 540), ("d", 120))]
    event = a_status("e", "EventStatus", since=None)
    assert next_status_check([*statuses, event], NOW, TWO_MINUTES) == NOW + timedelta(seconds=20)
    assert next_status_check([statuses[-1]], NOW, TWO_MINUTES) is None
