"""The NodeClaim made from a planned node."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.nodeclaim_templates import (
    MAX_PLANNED_BYTES,
    PlannedPod,
    claim_name,
    format_planned_pods,
    make_templates,
    planned_pods,
    to_node_claim,
)
from journeyman.core.scheduling.results import PlannedClaim
from tests.helpers.builders import CLASS_LABEL, a_pod, a_pool, a_snapshot

POOL = a_pool(
    spec={
        "template": {
            "metadata": {"labels": {"team": "red"}, "annotations": {"note": "mine"}},
            "spec": {
                "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
                "startupTaints": [{"key": "cni", "effect": "NoExecute"}],
                "terminationGracePeriod": "1h",
                "expireAfter": "24h",
            },
        }
    }
)


def planned(*pods):
    """A planned node for these pods."""
    return PlannedClaim(
        node_pool="default",
        pods=pods,
        instance_types=("m.small",),
        requirements=(
            NodeSelectorRequirement(key="disk", operator="In", values=("ssd", "hdd")),
            NodeSelectorRequirement(key=labels.INSTANCE_TYPE, operator="In", values=("m.small",)),
        ),
        requests={"cpu": 1500, "memory": 2**30, "pods": 1},
        offering=("m.small", "a", "spot"),
        price=0.1,
    )


def manifest(*pods):
    """Its NodeClaim."""
    return to_node_claim(planned(*pods), POOL, name="default-abc", hash="42", hash_version="v3")


def test_a_name_is_the_same_for_the_same_decision_only():
    """Order of pods is no matter; pool, seed and pods are."""
    assert claim_name("a", "s", ["x", "y"]) == claim_name("a", "s", ["y", "x"])
    assert len({claim_name(p, s, u) for p in "ab" for s in "st" for u in (["x"], ["y"])}) == 8


def test_a_name_fits_a_label_value_whatever_the_pools_is():
    """63 characters, the suffix whole."""
    name = claim_name("p" * 63, "s", ["x"])

    assert len(name) == 63
    assert len(name.rsplit("-", 1)[1]) == 8


def test_a_claim_carries_what_its_pool_template_says():
    """Labels, annotations, taints, times, owner; and one value for each label of the user's own."""
    claim = manifest("default/p")

    assert claim["metadata"]["labels"] == {
        "team": "red",
        "disk": "ssd",
        labels.NODEPOOL: "default",
        CLASS_LABEL: "default",
    }
    assert claim["metadata"]["annotations"]["note"] == "mine"
    assert claim["metadata"]["annotations"][labels.NODEPOOL_HASH] == "42"
    assert claim["metadata"]["ownerReferences"][0]["uid"] == "uid-default"
    assert claim["spec"]["taints"] == [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    assert claim["spec"]["startupTaints"] == [{"key": "cni", "effect": "NoExecute"}]
    assert (claim["spec"]["expireAfter"], claim["spec"]["terminationGracePeriod"]) == ("24h", "1h")
    assert claim["spec"]["resources"]["requests"] == {"cpu": "1500m", "memory": "1Gi", "pods": "1"}


def test_a_claim_reads_back_as_the_api_server_would_give_it():
    """The manifest decodes into the Struct, requirements and all."""
    claim = msgspec.convert(manifest("default/p"), NodeClaim)

    assert claim.spec.requirements == planned().requirements
    assert planned_pods(claim.metadata.annotations) == ("default/p",)


def test_a_claim_remembers_only_as_many_pods_as_fit():
    """Whole names, no more than the annotation may hold."""
    pods = tuple(f"default/pod-with-a-long-name-{i:06d}" for i in range(2000))

    remembered = planned_pods(manifest(*pods)["metadata"]["annotations"])

    assert remembered == pods[: len(remembered)]
    assert MAX_PLANNED_BYTES - 64 < len(",".join(remembered)) <= MAX_PLANNED_BYTES


def test_a_claim_says_whether_min_values_were_lowered_for_it():
    """In Karpenter's annotation, true or false."""
    manifests = [
        to_node_claim(
            replace(planned("default/p"), min_values_relaxed=lowered), POOL, name="n", hash="1", hash_version="v3"
        )
        for lowered in (True, False)
    ]
    said = [manifest["metadata"]["annotations"][labels.MIN_VALUES_RELAXED] for manifest in manifests]
    assert said == ["true", "false"]


@pytest.mark.parametrize(("excess", "kept"), [(-1, 2), (0, 2), (1, 1)])
def test_the_annotation_of_planned_pods_may_have_its_whole_size(excess, kept):
    """The last pod is left out only if the text would be longer than its limit."""
    first = "default/a"
    last = "default/" + "b" * (MAX_PLANNED_BYTES - len(first) - len(",default/") + excess)

    assert format_planned_pods([first, last], {}) == ",".join([first, last][:kept])


@pytest.mark.parametrize(
    ("entry", "owner", "means"),
    [
        (PlannedPod(key="default/a"), None, True),
        (PlannedPod(key="default/b"), None, False),
        (PlannedPod(key="default/a", uid="uid-"), None, True),
        (PlannedPod(key="default/a", uid="other"), None, False),
        (PlannedPod(key="default/a", uid="other"), "StatefulSet", True),
        (PlannedPod(key="default/a", uid="other"), "ReplicaSet", False),
        (PlannedPod(key="default/b", uid="uid-"), "StatefulSet", False),
    ],
)
def test_an_entry_means_the_same_pod_or_a_stateful_sets_next_one(entry, owner, means):
    """The pod's key must match always, its UID unless the StatefulSet has replaced it."""
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "s", "uid": "u", "controller": True}] if owner else []

    assert entry.means(a_pod("a", metadata={"ownerReferences": owners})) is means


def test_a_pool_without_instance_types_has_no_template():
    """Whether the catalogue does not know the pool, or knows that there are none."""
    pool = a_pool()

    for catalogue in (Catalogue({}), Catalogue({"default": ()})):
        templates, invalid = make_templates(a_snapshot(node_pools=(pool,)), catalogue)
        assert templates == ()
        assert "no instance types are known" in invalid["default"]
