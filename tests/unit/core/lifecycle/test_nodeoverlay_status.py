"""NodeOverlay status: whether an overlay is applied."""

import pytest

from journeyman.core.api.model import parse
from journeyman.core.api.nodeoverlay import NodeOverlay
from journeyman.core.lifecycle.nodeoverlay_status import reconcile_nodeoverlays
from journeyman.core.state import InvalidObject
from tests.helpers.builders import NOW, a_snapshot, an_overlay, condition, overlay_body, stamp


def test_conditions_report_whether_an_overlay_is_applied():
    """They are True, or False with `Conflict` or `RuntimeValidation`; an unchanged condition is not written again."""
    bad = InvalidObject(kind="NodeOverlay", name="bad", uid="uid-bad", why="spec.price: no", generation=1)
    pool = InvalidObject(kind="NodePool", name="pool", uid="uid-pool", why="no NodeOverlay")
    snapshot = a_snapshot(node_overlays=(an_overlay("good"), an_overlay("late")), invalid_objects=(bad, pool))
    plan = reconcile_nodeoverlays(snapshot, {"late": "good"})
    written = {action.ref.name: action.patch["status"]["conditions"] for action in plan.actions}
    statuses = {name: {c["type"]: (c["status"], c["reason"]) for c in each} for name, each in written.items()}
    assert statuses["good"] == {"ValidationSucceeded": ("True", "ValidationSucceeded"), "Ready": ("True", "Ready")}
    assert statuses["late"]["ValidationSucceeded"] == ("False", "Conflict")
    assert statuses["bad"]["ValidationSucceeded"] == ("False", "RuntimeValidation")
    ready = {name: conditions["Ready"][0] for name, conditions in statuses.items()}
    assert ready == {"good": "True", "late": "False", "bad": "False"}
    body = {**overlay_body("good"), "metadata": {"name": "good", "uid": "uid-good", "generation": 1}}
    settled = parse(NodeOverlay, {**body, "status": {"conditions": written["good"]}})
    assert reconcile_nodeoverlays(a_snapshot(node_overlays=(settled,)), {}).chains == ()


@pytest.mark.parametrize(("deleted", "observed"), [(None, 1), (stamp(NOW), 2)])
def test_other_conditions_count_as_observed_on_a_deleted_overlay(deleted, observed):
    """Their controllers stop at the deletion; otherwise those controllers update them."""
    metadata = {"name": "o", "uid": "uid-o", "generation": 2, "deletionTimestamp": deleted}
    status = {"conditions": [condition("Audited", observedGeneration=1)]}
    overlay = parse(NodeOverlay, {**overlay_body("o"), "metadata": metadata, "status": status})

    (action,) = reconcile_nodeoverlays(a_snapshot(node_overlays=(overlay,)), {}).actions

    generations = {c["type"]: c["observedGeneration"] for c in action.patch["status"]["conditions"]}
    assert generations == {"Audited": observed, "ValidationSucceeded": 2, "Ready": 2}
