"""Which pods are set aside before anything is placed, and why."""

from __future__ import annotations

import pytest

from journeyman.core.api import labels
from journeyman.core.scheduling.pod_classes import group_pods
from journeyman.core.scheduling.pod_validation import invalid_selection, opted_out
from tests.helpers.builders import a_pod


def affinity(*expressions, **term):
    """A spec with one required node affinity term."""
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
def test_selectors_that_cannot_be_read_are_named(spec, why):
    """Nothing is said about a pod that is well formed."""
    pod = a_pod("p", spec=spec)

    reason = invalid_selection(pod.spec.node_selector, pod.spec.affinity)

    assert why in reason
    assert bool(reason) is bool(why)


def test_a_pod_may_opt_out_of_our_nodes():
    """How the autoscaler's own parts stay off them."""
    expression = {"key": labels.NODEPOOL, "operator": "DoesNotExist"}

    assert opted_out(a_pod("p", spec=affinity(expression)))
    assert not opted_out(a_pod("p"))


def test_a_pod_with_another_way_in_has_not_opted_out():
    """Terms are alternatives: one of them staying off our nodes leaves the other."""
    out, zone = (
        {"matchExpressions": [{"key": labels.NODEPOOL, "operator": "DoesNotExist"}]},
        {"matchExpressions": [{"key": labels.ZONE, "operator": "Exists"}]},
    )
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [out, zone]}}

    assert not opted_out(a_pod("p", spec={"affinity": {"nodeAffinity": required}}))


def spread(**changes):
    """A spec with one spread constraint over zones."""
    return {"topologySpreadConstraints": [{"topologyKey": labels.ZONE, "labelSelector": {}, **changes}]}


def apart(kind, **term):
    """A spec with one term about other pods."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": labels.ZONE, **term}]}
    return {"affinity": {kind: required}}


def takes(**requests):
    """A spec whose one container asks for these."""
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
def test_a_bad_pod_is_set_aside_with_its_reason_and_the_others_go_on(spec, kind, why):
    """An invalid pod does not keep other pods from a node."""
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
def test_what_is_understood_is_no_error(spec):
    """Host ports, any spread, and rules about other pods."""
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
    """One expression of each alternative is enough."""
    body = [{"matchExpressions": [{"key": key, "operator": operator} for key, operator in term]} for term in terms]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": body}} if terms else {}

    assert opted_out(a_pod("p", spec={"affinity": {"nodeAffinity": rule}})) is ignored
