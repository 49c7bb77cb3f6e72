"""Explains why a pod is unschedulable, with counts, and the smallest change that would let it schedule."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue, Unavailable, without_unavailable
from journeyman.core.scheduling.explanation import Explainer
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.nodeclaim_templates import make_templates
from journeyman.core.scheduling.nodepool_options import NodePoolOptions
from journeyman.core.scheduling.pod_classes import group_pods
from journeyman.core.scheduling.requirements import from_labels
from journeyman.core.scheduling.results import Effort
from journeyman.core.scheduling.scheduler import explained as explain_later
from journeyman.core.scheduling.scheduler import solve
from journeyman.core.scheduling.volumes import PodVolumes
from tests.helpers.builders import (
    NOW,
    POOL,
    a_pod,
    a_pool,
    a_snapshot,
    a_volume,
    a_volume_claim,
    an_instance_type,
    claims_as_volumes,
    with_reservation,
)

SMALL = an_instance_type("m.small", cpu=2, memory_gib=8, price=0.10, zones=("a", "b"), spot=0.05)
LARGE = an_instance_type("m.large", cpu=16, memory_gib=64, price=0.80, zones=("a", "b"))
AXES = ("cpu", "memory", "nvidia.com/gpu", "pods")
BACK = NOW + timedelta(minutes=4)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def an_explainer(*node_pools, types=(LARGE, SMALL), unavailable=(), **options):
    """Return an explainer for these NodePools (default: only `POOL`) at the end of a pass that launched no node."""
    node_pools = node_pools or (a_pool(),)
    offered = without_unavailable(types, unavailable)
    catalogue = Catalogue({pool.metadata.name: offered for pool in node_pools})
    templates, invalid_objects = make_templates(a_snapshot(node_pools=node_pools), catalogue)
    pools = [NodePoolOptions.of(t, (), AXES) for t in templates]
    headroom = [Headroom(t, ()) for t in templates]
    return Explainer(axes=AXES, pools=pools, headroom=headroom, invalid_objects=invalid_objects, **options)


def explained(explainer, stuck="", effort=None, **pod):
    """Return the error that explains why such a pod is unschedulable."""
    (cls,), errors = group_pods([a_pod("p", **pod)], {})
    assert not errors
    request = np.array([cls.requests.get(axis, 0) for axis in AXES], dtype=np.int64)
    return explainer.explain(cls, request, stuck=stuck, effort=effort)


def unavailable_offerings(*types, zones=("a", "b"), capacity_types=(labels.ON_DEMAND, labels.SPOT)):
    """Return offerings that are unavailable for four minutes."""
    return [
        Unavailable(instance_type=t, zone=z, capacity_type=c, until=BACK, reason="InsufficientCapacity")
        for t in types
        for z in zones
        for c in capacity_types
    ]


def selecting(**values):
    """Return a pod spec with a node selector."""
    return {"nodeSelector": values}


def tainted(name=POOL, **spec):
    """Return a NodePool with a NoSchedule taint."""
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    return a_pool(name, spec={"template": {"spec": {"taints": [taint]}}, **spec})


def test_reason_counts_instance_types_and_states_until_when_offerings_are_unavailable():
    """The reason states the cause in one sentence, and the same facts as fields."""
    error = explained(
        an_explainer(unavailable=unavailable_offerings("m.large", zones=("b",))),
        cpu="12",
        spec=selecting(**{labels.ZONE: "b"}),
    )

    (reason,) = error.reasons
    assert (
        reason.detail
        == "needs 12 vCPU: 1 of 2 types fit, but no instance type has the required offering in zone b: out of stock until 21:04 UTC"
    )
    assert (reason.kind, reason.types_total, reason.types_suiting) == ("offerings", 2, 2)
    assert (reason.types_fitting, reason.types_available, reason.unavailable_until) == (1, 0, BACK)
    assert error.smallest_change == "allow zone a"


@pytest.mark.parametrize(
    ("explainer", "pod", "kind", "change"),
    [
        (an_explainer(tainted()), {}, "taints", "tolerate taint gpu=yes:NoSchedule"),
        (an_explainer(), {"spec": selecting(**{labels.ZONE: "mars"})}, "requirements", "allow zone a"),
        (
            an_explainer(),
            {"cpu": "12", "spec": selecting(**{labels.CAPACITY_TYPE: labels.SPOT})},
            "resources",
            "allow capacity type on-demand",
        ),
        (
            an_explainer(),
            {"spec": selecting(**{labels.INSTANCE_TYPE: "x9"})},
            "requirements",
            "allow instance type m.small",
        ),
        (an_explainer(), {"spec": selecting(zone="b")}, "requirements", f"write label zone as {labels.ZONE}"),
        (
            an_explainer(),
            {"spec": selecting(**{"topolgy.kubernetes.io/zone": "b"})},
            "requirements",
            f"write label topolgy.kubernetes.io/zone as {labels.ZONE}",
        ),
        (
            an_explainer(),
            {"spec": selecting(**{"karpenter.sh/nodepool": "ours"})},
            "requirements",
            f"allow label karpenter.sh/nodepool={POOL}",
        ),
        (an_explainer(), {"spec": selecting(team="red")}, "requirements", "drop its requirement on label team"),
        (an_explainer(), {"cpu": "99"}, "resources", "request at most 15.92 vCPU (it asks for 99 vCPU)"),
        (
            an_explainer(),
            {"spec": {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}},
            "resources",
            "request no nvidia.com/gpu, or create a NodePool whose instance types have it",
        ),
        (
            an_explainer(a_pool(spec={"limits": {"cpu": "1"}})),
            {},
            "limits",
            "raise NodePool default's limit on cpu by 1",
        ),
        (
            an_explainer(unavailable=unavailable_offerings("m.small", "m.large")),
            {},
            "offerings",
            "wait until 2026-03-02 21:04 UTC, when unavailable offerings are tried again",
        ),
        (an_explainer(tainted()), {"cpu": "99"}, "taints", "create a NodePool with instance types for it"),
    ],
)
def test_smallest_change_is_the_first_change_that_suffices_alone(explainer, pod, kind, change):
    """The explainer checks each change against the available offerings, and states its concrete value."""
    error = explained(explainer, **pod)

    assert error.reasons[0].kind == kind
    assert error.smallest_change == change
    assert change in error.message


def test_change_that_does_not_suffice_is_not_suggested():
    """With a toleration, the tainted NodePool still has no capacity for the pod; a smaller request suffices."""
    error = explained(an_explainer(tainted("other", limits={"cpu": "1"}), a_pool()), cpu="20")

    assert error.smallest_change == "request at most 15.92 vCPU (it asks for 20 vCPU)"


def placed(*node_pools, types=(LARGE, SMALL), unavailable=(), **pod):
    """Return whether the scheduler schedules such a pod."""
    node_pools = node_pools or (a_pool(),)
    offered = without_unavailable(types, unavailable)
    snapshot = a_snapshot(node_pools=node_pools, pods=(a_pod("p", **pod),))
    return not solve(snapshot, Catalogue({pool.metadata.name: offered for pool in node_pools})).pod_errors


def test_suggested_changes_are_just_enough_for_the_scheduler_to_schedule_the_pod():
    """The scheduler schedules the pod with the change, but not without it or with a slightly smaller change."""
    tolerating = {"tolerations": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
    limited = [a_pool(spec={"limits": {"cpu": limit}}) for limit in ("1999m", "2")]
    lost = unavailable_offerings("m.large", zones=("b",))
    in_zone = [selecting(**{labels.ZONE: zone}) for zone in "ba"]

    assert [placed(cpu=cpu) for cpu in ("15921m", "15920m")] == [False, True]
    assert [placed(tainted(), spec=spec) for spec in ({}, tolerating)] == [False, True]
    assert [placed(pool) for pool in limited] == [False, True]
    assert [placed(unavailable=lost, cpu="12", spec=spec) for spec in in_zone] == [False, True]


def test_error_names_the_well_known_label_when_a_label_is_mistyped():
    """The error has the text that Karpenter uses."""
    error = explained(an_explainer(), spec=selecting(zone="a"))

    assert 'typo of "topology.kubernetes.io/zone"?' in error.message


def test_nodepool_that_passes_the_most_filters_is_listed_first():
    """A NodePool without limit left comes before a tainted NodePool; an unusable NodePool comes last."""
    node_pools = (tainted("b"), a_pool("a", spec={"limits": {"cpu": "1"}}), a_pool("c", spec={"replicas": 1}))
    error = explained(an_explainer(*node_pools))

    assert [(r.node_pool, r.kind) for r in error.reasons] == [("a", "limits"), ("b", "taints"), ("c", "not-usable")]
    assert list(error.by_node_pool) == ["a", "b", "c"]
    assert error.kind == "limits"


APART = {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": labels.ZONE, "labelSelector": {}}]}}}
SPREAD = {"topologySpreadConstraints": [{"topologyKey": labels.ZONE, "labelSelector": {}}]}


def test_constraint_about_other_pods_is_the_reason_when_all_other_filters_pass():
    """The reason has the scheduler's text, and the smallest change removes the pod's only such constraint."""
    error = explained(an_explainer(), stuck="no zone is free of such pods", spec=APART)

    assert (error.reasons[0].kind, error.kind) == ("rules", "unschedulable")
    assert "2 of 2 types fit, but no zone is free of such pods" in error.message
    whom = "pods of any labels in namespace default"
    assert error.smallest_change == f"remove its pod anti-affinity over {labels.ZONE} to {whom}"


def test_error_names_one_constraint_only_if_no_other_constraint_can_block_the_pod():
    """A spread over hostnames cannot block a pod on a new node; the anti-affinity of other pods can."""
    over_hosts = {"topologySpreadConstraints": [{"topologyKey": labels.HOSTNAME, "labelSelector": {}}]}
    any_of_them = "relax its constraints about other pods, or theirs about it"
    (cls,), _ = group_pods([a_pod("other", spec=APART)], {})

    assert explained(an_explainer(), spec=APART | SPREAD).smallest_change == any_of_them
    assert "anti-affinity" in explained(an_explainer(), spec=APART | over_hosts).smallest_change
    assert explained(an_explainer(others=cls.anti_affinities), spec=SPREAD).smallest_change == any_of_them
    assert explained(an_explainer(others=cls.anti_affinities)).smallest_change == (
        f"relax the pod anti-affinity of other pods over {labels.ZONE}, which excludes it"
    )


def test_error_names_the_constraint_that_blocks_a_sequentially_scheduled_pod():
    """The scheduler handles host ports and affinity over hostnames sequentially, and records no reason per node."""
    beside = {"topologyKey": labels.HOSTNAME, "labelSelector": {"matchLabels": {"app": "db"}}}
    follows = {"affinity": {"podAffinity": {REQUIRED: [beside]}}}
    listens = {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 8080}]}]}

    assert f"affinity over {labels.HOSTNAME} to pods with app=db in namespace default" in (
        explained(an_explainer(), spec=follows).message
    )
    assert "unsatisfiable constraints of the pod: host port 8080" in explained(an_explainer(), spec=listens).message


def test_resource_that_no_instance_type_has_is_reported_as_missing():
    """The reason states that no compatible instance type has the resource, not that it has too little."""
    gpu_spec = {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
    (reason,) = explained(an_explainer(), spec=gpu_spec).reasons

    assert reason.detail == "no instance type has enough resources: none of the 2 compatible types has nvidia.com/gpu"


def test_label_value_that_does_not_suffice_alone_is_not_suggested():
    """minValues requires three instance types; one more than the one that the pod allows is not enough."""
    families = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 3}
    pool = a_pool(spec={"template": {"spec": {"requirements": [families]}}})
    types = (SMALL, LARGE, an_instance_type("m.huge", cpu=32, memory_gib=64, price=2.0))
    error = explained(an_explainer(pool, types=types), spec=selecting(**{labels.INSTANCE_TYPE: "m.small"}))

    assert error.smallest_change == "drop its requirement on instance type"


def with_volumes(**zones):
    """Return a snapshot in which each pod has a bound PersistentVolumeClaim for each of its zones, and the catalogue."""
    names = {f"{pod}-{number}": zone for pod, reached in zones.items() for number, zone in enumerate(reached)}
    snapshot = a_snapshot(
        node_pools=(a_pool(),),
        pods=tuple(
            a_pod(pod, **claims_as_volumes(*(f"{pod}-{number}" for number in range(len(reached)))))
            for pod, reached in zones.items()
        ),
        persistent_volume_claims=tuple(a_volume_claim(name, volume=f"pv-{name}") for name in names),
        persistent_volumes=tuple(a_volume(f"pv-{name}", {labels.ZONE: (zone,)}) for name, zone in names.items()),
    )
    return snapshot, Catalogue({POOL: (LARGE, SMALL)})


def test_error_names_the_claims_and_zones_of_each_pods_own_volumes():
    """The manifest does not name the zone; the volume does. Pods with equal constraints share all but the claims."""
    errors = solve(*with_volumes(red=["mars"], blue=["mars"])).pod_errors

    for pod in ("red", "blue"):
        claim = f"PersistentVolumeClaim default/{pod}-0 in zone mars"
        assert f"(its volumes: {claim})" in errors[f"default/{pod}"].message
        assert errors[f"default/{pod}"].smallest_change == f"move its volumes to where a node can run it ({claim})"
        assert claim in errors[f"default/{pod}"].reasons[0].detail


def test_volumes_in_two_zones_are_named_with_their_zones():
    """No node can attach both, whatever the NodePool offers."""
    (error,) = solve(*with_volumes(p=["a", "b"])).pod_errors.values()

    claims = "PersistentVolumeClaims default/p-0 in zone a and default/p-1 in zone b"
    assert error.by_node_pool == {POOL: f"no node can attach all of its volumes ({claims})"}
    assert error.smallest_change == f"move its volumes to where one node can attach all of them ({claims})"


def test_error_states_that_the_nodepool_cannot_meet_min_values():
    """With strict minValues, neither a higher limit nor waiting for offerings would help."""
    families = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 3}
    pool = a_pool(spec={"template": {"spec": {"requirements": [families]}}})
    error = explained(an_explainer(pool))

    assert error.reasons[0].kind == "min-values"
    assert f"2 of 3 for {labels.INSTANCE_TYPE}" in error.message
    assert error.smallest_change == "create a NodePool with instance types for it"
    assert explained(an_explainer(pool, strict_min_values=False)).reasons[0].kind == "rules"


MANY_LABELS = 6400


@pytest.mark.parametrize(
    ("labels_of_the_pod", "change"),
    [
        ({f"k{n}": "x" for n in range(MANY_LABELS)}, "create a NodePool with instance types for it"),
        ({"team": "red", labels.ZONE: "a"}, "drop its requirement on label team"),
        (
            {f"node.kubernetes.io/{n}": "x" for n in range(MANY_LABELS)} | {labels.ZONE: "mars"},
            "create a NodePool with instance types for it",
        ),
    ],
    ids=["unknown labels", "one unknown label", "unknown labels of a known domain"],
)
def test_the_search_takes_no_longer_for_thousands_of_labels_that_no_node_has(labels_of_the_pod, change):
    """With two labels that no node has no single change helps, so the search tries no others; 6,400 took 27 s and 1.3 GB."""
    effort = Effort()

    error = explained(an_explainer(), spec=selecting(**labels_of_the_pod), effort=effort)

    assert error.smallest_change == change
    assert effort.done < 20_000


def test_labels_that_exclude_no_node_hide_no_change():
    """A pod that forbids thousands of labels, which no node has, needs another zone only."""
    forbidden = [{"key": f"k{n}", "operator": "DoesNotExist"} for n in range(1000)]
    elsewhere = {"key": labels.ZONE, "operator": "In", "values": ["mars"]}
    terms = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [*forbidden, elsewhere]}]}}

    assert explained(an_explainer(), spec={"affinity": {"nodeAffinity": terms}}).smallest_change == "allow zone a"


def test_pods_whose_explanation_takes_too_long_are_told_so():
    """Those with few constraints are explained first, and get their reasons even if the search for a change ends."""
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": ["x"]} for key in (f"k{n}", labels.ZONE)]}
        for n in range(300)
    ]
    many = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}
    pods = (a_pod("many", spec=many), a_pod("few", cpu="99"), a_pod("one", spec=selecting(team="red")))
    catalogue, snapshot = Catalogue({POOL: (LARGE, SMALL)}), a_snapshot(node_pools=(a_pool(),), pods=pods)

    def errors(effort):
        return explain_later(solve(snapshot, catalogue, explain=False), effort=effort).pod_errors

    generous, tight, none = errors(1_000_000), errors(2_000), errors(0)

    assert "ended early" in generous["default/many"].smallest_change
    assert generous["default/many"].message.endswith(generous["default/many"].smallest_change)
    assert "request at most 15.92 vCPU" in tight["default/few"].message
    assert all("ended early" in error.message for error in (tight["default/many"], *none.values()))


@pytest.mark.parametrize(("domains", "change"), [(2, "relax its"), (3, "from 3 to 2"), (4, "from 4 to 2")])
def test_a_lower_min_domains_is_suggested_where_it_suffices(domains, change):
    """The NodePool has two zones. With minDomains of three, maxSkew is counted from zero, so each zone takes one pod."""
    spread = {"topologyKey": labels.ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    counted = {**spread, "minDomains": domains, "labelSelector": {"matchLabels": {"app": "a"}}}
    spec = {"topologySpreadConstraints": [counted]}

    def left(min_domains):
        spec = {"topologySpreadConstraints": [{**counted, "minDomains": min_domains}]}
        pods = tuple(a_pod(f"p{n}", spec=spec, metadata={"labels": {"app": "a"}}) for n in range(5))
        snapshot = a_snapshot(node_pools=(a_pool(),), pods=pods)
        return len(solve(snapshot, Catalogue({POOL: (LARGE, SMALL)})).pod_errors)

    assert change in explained(an_explainer(), spec=spec).smallest_change
    assert (left(domains), left(2)) == (3 if domains > 2 else 0, 0)


def test_affinity_that_selects_no_namespace_says_so():
    """Nothing can be in a namespace that does not exist."""
    nowhere = {
        "topologyKey": labels.ZONE,
        "labelSelector": {"matchLabels": {"app": "db"}},
        "namespaceSelector": {"matchLabels": {"team": "none"}},
    }
    error = explained(an_explainer(), spec={"affinity": {"podAffinity": {REQUIRED: [nowhere]}}})

    assert "pods with app=db in no namespace (its namespaceSelector selects none)" in error.message


def test_memory_has_a_unit():
    """An odd number of bytes is rounded: what is asked for up, what fits down."""
    error = explained(an_explainer(), memory="123456789123")

    assert "needs 114.98Gi memory" in error.message
    assert error.smallest_change.endswith("memory (it asks for 114.98Gi memory)")


def test_long_lists_are_cut():
    """A message names some of thousands of values, and says how many more there are."""
    zones = {"key": labels.ZONE, "operator": "In", "values": [f"zone-{n:04}" for n in range(5000)]}
    terms = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [zones]}]}}
    error = explained(an_explainer(), spec={"affinity": {"nodeAffinity": terms}})

    assert "zone-0000" in error.message
    assert len(error.message) < 500


def requiring(*requirements, **spec):
    """Return a NodePool with these requirements."""
    return a_pool(spec={"template": {"spec": {"requirements": list(requirements), **spec}}})


def test_a_limit_error_states_what_is_left_of_the_limit():
    """The error states the amount in the unit of the resource."""
    error = explained(an_explainer(a_pool(spec={"limits": {"cpu": "1"}})))

    assert "exceed limits for nodepool (left: 1 vCPU)" in error.message


def test_suggested_value_extends_the_values_that_the_pod_allows():
    """minValues requires two instance types: the one that the pod allows, and the cheapest other one."""
    two = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 2}
    error = explained(an_explainer(requiring(two)), spec=selecting(**{labels.INSTANCE_TYPE: "m.large"}))

    assert error.smallest_change == "allow instance type m.small"


def test_moving_volumes_is_not_suggested_when_the_pod_fits_no_instance_type():
    """The pod is too large for every instance type, in whatever zone its volumes are."""
    elsewhere = PodVolumes(terms=(from_labels({labels.ZONE: "mars"}),))
    spec = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
    (cls,), _ = group_pods([a_pod("p", cpu="99", spec=spec)], {}, volumes_of=lambda _: elsewhere)
    request = np.array([cls.requests.get(axis, 0) for axis in AXES], dtype=np.int64)

    assert an_explainer().explain(cls, request).smallest_change == "create a NodePool with instance types for it"


def test_only_instance_types_that_the_nodepool_admits_are_counted():
    """The NodePool requires spot capacity, which one of the two instance types does not have."""
    spot = {"key": labels.CAPACITY_TYPE, "operator": "In", "values": [labels.SPOT]}
    (reason,) = explained(an_explainer(requiring(spot)), cpu="12").reasons

    assert (reason.kind, reason.types_total) == ("resources", 1)


def test_error_states_that_no_reservation_is_left_when_only_reserved_capacity_is_allowed():
    """The reserved offering is available but the pod is unschedulable, so the pass has used up the reservation."""
    reserved = {"key": labels.CAPACITY_TYPE, "operator": "In", "values": [labels.RESERVED]}
    types = (with_reservation(SMALL, "cr-1", price=0.01),)
    (reason,) = explained(an_explainer(requiring(reserved), types=types)).reasons

    assert (reason.kind, reason.types_available) == ("offerings", 1)
    assert "only reserved capacity offers them, and none is left" in reason.detail


def test_a_min_values_error_names_only_the_labels_that_lack_values():
    """The NodePool has enough zones, but one instance type too few."""
    wanted = [
        {"key": key, "operator": "Exists", "minValues": n} for key, n in ((labels.INSTANCE_TYPE, 3), (labels.ZONE, 2))
    ]
    (reason,) = explained(an_explainer(requiring(*wanted))).reasons

    assert reason.detail.endswith(f"the minValues requirement is not met (2 of 3 for {labels.INSTANCE_TYPE})")


def test_smallest_sufficient_reduction_of_the_requests_is_suggested():
    """The pod would fit one instance type with half of its cpu, the other with a quarter of its memory."""
    types = (
        an_instance_type("r.slow", cpu=2, memory_gib=64, price=0.3),
        an_instance_type("c.fast", cpu=16, memory_gib=8, price=0.3),
    )

    error = explained(an_explainer(types=types), cpu="4", memory="32Gi")

    assert error.smallest_change.startswith("request at most 1.92 vCPU")


def test_cheapest_label_value_of_all_nodepools_is_suggested():
    """One NodePool has large nodes in zone a, the other has small nodes in zone b."""

    def only(name, zone, instance_type):
        values = {labels.ZONE: zone, labels.INSTANCE_TYPE: instance_type}
        wanted = [{"key": key, "operator": "In", "values": [value]} for key, value in values.items()]
        return a_pool(name, spec={"template": {"spec": {"requirements": wanted}}})

    explainer = an_explainer(only("one", "a", "m.large"), only("two", "b", "m.small"))

    assert explained(explainer, spec=selecting(**{labels.ZONE: "c"})).smallest_change == "allow zone b"
