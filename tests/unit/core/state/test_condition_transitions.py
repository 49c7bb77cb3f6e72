"""Status condition transitions: the Events and metrics recorded when a condition changes its status."""

from datetime import timedelta

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.metrics import METRICS, OPTIONAL_LABELS, object_label
from journeyman.core.api.objects import NODECLAIM, NODEPOOL, Condition
from journeyman.core.plan import ObjectRef
from journeyman.core.state.condition_transitions import transition_events, transition_metrics
from tests.helpers.builders import CLASS_LABEL, NOW, condition

CLAIM = ObjectRef(resource=NODECLAIM, name="default-1")
TRANSITIONED = "Status condition transitioned, Type:"
POOL = ObjectRef(resource=NODEPOOL, name="default")


def conditions(**status):
    """Conditions by type, each given as (status, reason, message, minutes since the last transition)."""
    return tuple(
        msgspec.convert(
            condition(type_, said[0], reason=said[1], since=NOW - timedelta(minutes=said[3]), message=said[2]),
            Condition,
        )
        for type_, said in status.items()
    )


def test_status_transition_has_the_event_that_karpenter_records():
    """A missing condition counts as Unknown; a new reason for the same status, or a removal, is no transition."""
    before = conditions(
        Launched=("Unknown", "LaunchFailed", "", 5),
        Registered=("Unknown", "NodeNotFound", "", 5),
        Gone=("True", "G", "", 5),
    )
    after = conditions(
        Launched=("True", "Launched", "", 0),
        Registered=("Unknown", "Other", "", 5),
        Drained=("Unknown", "Draining", "", 0),
        Initialized=("False", "NotReady", "the kubelet says so", 0),
    )

    events = transition_events(CLAIM, before, after)

    assert [(e.reason, e.message, e.type) for e in events] == [
        (
            "Launched",
            f"{TRANSITIONED} Launched, Status: Unknown -> True, Reason: Launched",
            "Normal",
        ),
        (
            "Initialized",
            f"{TRANSITIONED} Initialized, Status: Unknown -> False, Reason: NotReady, Message: the kubelet says so",
            "Normal",
        ),
    ]


def test_transition_seconds_is_how_long_the_previous_status_lasted():
    """Each transition is also counted; the samples have exactly the declared labels."""
    before = conditions(Launched=("Unknown", "LaunchFailed", "", 5))
    after = conditions(Launched=("True", "Launched", "", 1), Drained=("True", "Drained", "", 0))
    of = {labels.NODEPOOL: "default", CLASS_LABEL: "linux", "app": "mine"}

    samples = transition_metrics(CLAIM, of, before, after)

    assert [(s.name.removeprefix("operator_nodeclaim_status_condition_"), s.value) for s in samples] == [
        ("transitions_total", 1.0),
        ("transition_seconds", 240.0),
        ("transitions_total", 1.0),
    ]
    assert samples[1].labels == {
        "type": "Launched",
        "status": "Unknown",
        "karpenter_sh_nodepool": "default",
        "karpenter_k8s_aws_ec2nodeclass": "linux",
    }
    of_other_clouds = {object_label(key) for key in OPTIONAL_LABELS}
    assert all(set(s.labels) == set(METRICS[s.name].labels) - of_other_clouds for s in samples)
    assert all(s.kind == METRICS[s.name].kind for s in samples)
    [pool, _] = transition_metrics(POOL, {}, before, conditions(Launched=("True", "Launched", "", 1)))
    assert set(pool.labels) == set(METRICS[pool.name].labels)


def test_metrics_have_the_label_of_the_objects_nodeclass():
    """On AWS they have Karpenter's labels for AWS, and no others."""
    before, after = conditions(Launched=("Unknown", "L", "", 5)), conditions(Launched=("True", "L", "", 0))
    on_aws, *_ = transition_metrics(CLAIM, {labels.EC2NODECLASS: "default"}, before, after)
    on_alibaba, *_ = transition_metrics(CLAIM, {labels.ECSNODECLASS: "default"}, before, after)
    assert {name for name in on_aws.labels if "nodeclass" in name} == {"karpenter_k8s_aws_ec2nodeclass"}
    assert on_alibaba.labels["karpenter_k8s_alibabacloud_ecsnodeclass"] == "default"
    assert "karpenter_alibabacloud_com_ecsnodeclass" not in on_alibaba.labels
