"""Gauges of pending pods by effective zone, and of ignored pods."""

import pytest

from journeyman.core.api import labels
from journeyman.core.api.metrics import METRICS
from journeyman.core.observability.pending_pods import effective_zones, pending_gauges
from journeyman.core.scheduling.results import PodError, Results
from tests.helpers.builders import a_pod, a_snapshot, a_volume, a_volume_claim, claims_as_volumes


def wanting(*terms):
    """A pod spec whose required node affinity has these terms, each of them zones or an expression."""
    expressions = [
        [{"key": labels.ZONE, "operator": "In", "values": list(zones)}] if isinstance(zones, tuple) else [zones]
        for zones in terms
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": found} for found in expressions]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


PREFERS_A = {
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "preference": {"matchExpressions": [{"key": labels.ZONE, "operator": "In", "values": ["a"]}]},
                }
            ]
        }
    }
}
NOT_A = {"key": labels.ZONE, "operator": "NotIn", "values": ["a"]}


@pytest.mark.parametrize(
    ("spec", "zone"),
    [
        ({}, "flexible"),
        ({"nodeSelector": {"disk": "fast"}}, "flexible"),
        ({"nodeSelector": {labels.ZONE: "b"}}, "b"),
        (wanting(("a",)), "a"),
        (wanting(("a", "b")), "flexible"),
        (wanting(("a",), ("b",)), "flexible"),
        (wanting(NOT_A), "flexible"),
        (PREFERS_A, "flexible"),
        (claims_as_volumes("wide")["spec"], "flexible"),
        ({"nodeSelector": {labels.ZONE: "b"}, **wanting(("a",))}, "none"),
        ({"nodeSelector": {labels.ZONE: "b"}, **wanting(("a",), ("b",))}, "b"),
        (claims_as_volumes("data")["spec"], "a"),
        ({**claims_as_volumes("data")["spec"], "nodeSelector": {labels.ZONE: "b"}}, "none"),
        ({**claims_as_volumes("data")["spec"], **wanting(("a", "b"))}, "a"),
        (claims_as_volumes("missing")["spec"], "none"),
    ],
)
def test_effective_zone_is_what_selectors_and_volumes_allow(spec, zone):
    """The zone is its name if only one is allowed, `flexible` for several, `none` if they conflict."""
    snapshot = a_snapshot(
        persistent_volume_claims=(a_volume_claim("data", volume="disk"), a_volume_claim("wide", volume="regional")),
        persistent_volumes=(a_volume("disk", {labels.ZONE: ("a",)}), a_volume("regional", {labels.ZONE: ("a", "b")})),
    )

    assert effective_zones([a_pod("p", spec=spec)], snapshot) == {zone: 1}


def test_ignored_pods_are_counted_and_have_no_zone():
    """Invalid pods and pods that avoid all NodePools are ignored; other unschedulable pods are not."""
    elsewhere = wanting({"key": labels.NODEPOOL, "operator": "DoesNotExist"})
    pods = (
        a_pod("elsewhere", spec=elsewhere),
        a_pod("wrong"),
        a_pod("large"),
        a_pod("placed"),
        a_pod("runs", node="n"),
    )
    errors = {f"default/{name}": PodError(kind=kind, message="-") for name, kind in ERRORS.items()}
    samples = list(pending_gauges(a_snapshot(pods=pods), Results(pod_errors=errors)))

    assert [(s.name, dict(s.labels), s.value) for s in samples] == [
        ("karpenter_scheduler_ignored_pods_count", {}, 2.0),
        (
            "karpenter_scheduler_pending_pods_by_effective_zone_count",
            {"controller": "provisioner", "zone": "flexible"},
            2.0,
        ),
    ]
    assert all(set(s.labels) == set(METRICS[s.name].labels) and s.kind == METRICS[s.name].kind for s in samples)


ERRORS = {"wrong": "invalid", "large": "unschedulable"}
