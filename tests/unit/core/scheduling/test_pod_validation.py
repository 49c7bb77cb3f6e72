"""Tests of pods that are invalid or ignored before scheduling, and the reasons."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.scheduling.pod_classes import group_pods
from journeyman.core.scheduling.pod_validation import invalid_selection, opted_out
from tests.helpers.builders import a_pod


def affinity(*expressions, **term):
    """Return a spec with one required node affinity term."""
    terms = [{"matchExpressions": list(expressions), **term}]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (affinity({"key": "team", "operator": "In", "values": []}), "at least one value"),
        (affinity({"key": "team", "operator": "Sometimes", "values": ["x"]}), "operator"),
        (affinity({"key": labels.HOSTNAME, "operator": "In", "values": ["x"]}), "restricted"),
        (affinity({"key": f"{labels.GROUP}/own", "operator": "Exists"}), "restricted"),
        (affinity({"key": "not a key", "operator": "Exists"}), "label key"),
        (affinity({"key": "team", "operator": "In", "values": ["a value"]}), "label value"),
        (affinity({"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["cheap"]}), "one of its values"),
        (affinity({"key": f"{labels.AWS_GROUP}/instance-tenancy", "operator": "In", "values": ["x"]}), "default"),
        (affinity({"key": labels.CAPACITY_TYPE, "operator": "In", "values": ["cheap", "spot"]}), ""),
        (affinity(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["n"]}]), "matchFields"),
        (affinity(), "has only empty terms"),
        ({"nodeSelector": {"team": "a", labels.ZONE: "b"}}, ""),
    ],
)
def test_invalid_node_selector_or_affinity_is_reported_with_its_reason(spec, why):
    """The reason is empty for a valid pod."""
    pod = a_pod("p", spec=spec)

    reason = invalid_selection(pod.spec.node_selector, pod.spec.affinity)

    assert why in reason
    assert bool(reason) is bool(why)


def test_pod_opts_out_when_it_requires_a_node_without_a_node_pool_label():
    """The autoscaler's own pods use this to stay off nodes that it manages."""
    expression = {"key": labels.NODEPOOL, "operator": "DoesNotExist"}

    assert opted_out(a_pod("p", spec=affinity(expression)))
    assert not opted_out(a_pod("p"))


def test_pod_with_another_node_affinity_term_has_not_opted_out():
    """Terms are alternatives: only one of the two excludes nodes of a NodePool."""
    out, zone = (
        {"matchExpressions": [{"key": labels.NODEPOOL, "operator": "DoesNotExist"}]},
        {"matchExpressions": [{"key": labels.ZONE, "operator": "Exists"}]},
    )
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [out, zone]}}

    assert not opted_out(a_pod("p", spec={"affinity": {"nodeAffinity": required}}))


def spread(**changes):
    """Return a spec with one topology spread constraint over zones."""
    return {"topologySpreadConstraints": [{"topologyKey": labels.ZONE, "labelSelector": {}, **changes}]}


def apart(kind, **term):
    """Return a spec with one required pod affinity or anti-affinity term."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": labels.ZONE, **term}]}
    return {"affinity": {kind: required}}


def takes(**requests):
    """Return a spec with one container that has these requests."""
    return {"containers": [{"name": "c", "resources": {"requests": requests}}]}


@pytest.mark.parametrize(
    ("spec", "kind", "why"),
    [
        (spread(maxSkew=0), "invalid", "maxSkew"),
        (spread(topologyKey=""), "invalid", "topologyKey"),
        (spread(whenUnsatisfiable="Perhaps"), "invalid", "whenUnsatisfiable"),
        (spread(minDomains=0), "invalid", "minDomains"),
        (apart("podAntiAffinity", topologyKey=""), "invalid", "topologyKey"),
        (apart("podAffinity", topologyKey="a b"), "invalid", "topologyKey"),
        (takes(cpu="-1"), "invalid", "negative"),
        (takes(memory="lots"), "invalid", "not a quantity"),
        (takes(memory="9E"), "invalid", "more memory than any node"),
        ({"resourceClaims": [{"name": "gpu"}]}, "unsupported", "Dynamic Resource Allocation"),
        ({"containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}]}, "unsupported", "Dynamic"),
    ],
)
def test_invalid_pod_gets_an_error_and_other_pods_are_still_grouped(spec, kind, why):
    """An invalid or unsupported pod does not prevent scheduling of other pods."""
    classes, errors = group_pods([a_pod("bad", spec=spec), a_pod("good")], {})

    assert [cls.keys for cls in classes] == [("default/good",)]
    assert list(errors) == ["default/bad"]
    assert errors["default/bad"].kind == kind
    assert why in errors["default/bad"].message


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": "v", "emptyDir": {}}]},
        {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
        spread(topologyKey="rack"),
        spread(topologyKey="rack", whenUnsatisfiable="ScheduleAnyway"),
        apart("podAffinity", labelSelector={}),
        apart("podAntiAffinity", labelSelector={}),
    ],
)
def test_supported_pod_features_give_no_error(spec):
    """Covers volumes, host ports, topology spread, pod affinity and anti-affinity."""
    classes, errors = group_pods([a_pod("p", spec=spec)], {})

    assert not errors
    assert len(classes) == 1


@pytest.mark.parametrize(
    ("terms", "ignored"),
    [
        ([[(labels.NODEPOOL, "DoesNotExist"), (labels.ZONE, "Exists")]], True),
        ([[(labels.NODEPOOL, "Exists"), (labels.ZONE, "DoesNotExist")]], False),
        ([[(labels.NODEPOOL, "DoesNotExist")], [(labels.ZONE, "Exists")]], False),
        ([], False),
    ],
)
def test_pod_that_requires_a_node_without_nodepool_is_ignored(terms, ignored):
    """Every term needs one expression that requires the missing NodePool label."""
    body = [{"matchExpressions": [{"key": key, "operator": operator} for key, operator in term]} for term in terms]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": body}} if terms else {}

    assert opted_out(a_pod("p", spec={"affinity": {"nodeAffinity": rule}})) is ignored
