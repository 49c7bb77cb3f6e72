"""Guard: an object that cannot be evaluated is skipped and reported, all others are evaluated, and a bug stops the step."""

from __future__ import annotations

import pytest

from journeyman.core.api.objects import NODE_CLASSES, POD
from journeyman.core.plan import Event, ObjectRef, Plan
from journeyman.core.state.skipped_objects import evaluate_each, plan_for_each, ref_of, refs_of
from journeyman.errors import ConfigurationError, InvariantError
from tests.helpers.builders import a_node_class, a_pod

PODS = (a_pod("first"), a_pod("odd"), a_pod("last"))


def handle(error):
    """Return a function that returns a plan with an Event on each pod, but raises this error for the pod `odd`."""

    def decide(pod):
        if pod.metadata.name == "odd":
            raise error
        ref = ObjectRef(resource=POD, name=pod.metadata.name, namespace=pod.metadata.namespace)
        return Plan(events=(Event(ref=ref, reason="Nominated", message="", type="Normal"),))

    return decide


def test_bug_is_no_objects_fault_and_stops_the_step():
    """The handler reports it; a skipped object would hide it."""
    with pytest.raises(InvariantError, match="two nodes"):
        plan_for_each(PODS, handle(InvariantError("a pod is on two nodes")))
    with pytest.raises(InvariantError, match="two nodes"):
        evaluate_each(PODS, handle(InvariantError("a pod is on two nodes")))


@pytest.mark.parametrize("error", [OverflowError("int too large"), KeyError("zone"), RecursionError("too deep")])
def test_object_that_raises_is_skipped_with_an_event_a_log_line_and_a_metric(error):
    """The log line names the exception and its place, so that the reason can be found without the object."""
    plan = plan_for_each(PODS, handle(error))

    assert [(str(e.ref), e.reason, e.type) for e in plan.events] == [
        ("Pod default/first", "Nominated", "Normal"),
        ("Pod default/odd", "ObjectSkipped", "Warning"),
        ("Pod default/last", "Nominated", "Normal"),
    ]
    (line,) = plan.logs
    assert line.level == "error"
    assert line.fields["Pod"] == {"name": "odd", "namespace": "default"}
    assert line.fields["error"] == type(error).__name__
    assert line.fields["place"].startswith("decide:")
    assert "Pod default/odd is skipped, all other objects are handled" in line.message
    assert [(o.name, o.labels) for o in plan.observations] == [("journeyman_objects_skipped_total", {"kind": "Pod"})]


def test_invalid_object_is_skipped_with_its_own_message():
    """Its author can mend it, so the message has no exception, and the log line is a warning."""
    plan = plan_for_each(PODS, handle(ConfigurationError("its amount 'lots' is not a quantity")))

    (line,) = plan.logs
    assert line.level == "warning"
    assert line.message.endswith("all other objects are handled: its amount 'lots' is not a quantity")
    assert "error" not in line.fields


def test_results_of_all_other_objects_keep_their_order():
    """An exception's text may quote a whole value, so its length is bounded."""
    results, (skipped,) = evaluate_each(PODS, handle(ValueError("9" * 9999)))

    assert [plan.events[0].ref.name for plan in results] == ["first", "last"]
    assert [str(ref) for ref in skipped.refs] == ["Pod default/odd"]
    assert len(skipped.why) == 500


@pytest.mark.parametrize("resource", NODE_CLASSES, ids=lambda resource: resource.api_version)
def test_nodeclass_is_named_with_its_own_api_group(resource):
    """Two groups have the kind ECSNodeClass."""
    (ref,) = refs_of(a_node_class(group=resource.group, kind=resource.kind))
    assert ref.resource == resource
    assert ref_of(resource.kind, "default", group=resource.group).resource == resource
