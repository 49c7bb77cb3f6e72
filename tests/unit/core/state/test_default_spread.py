"""Default spread constraints: valid settings, and which pods get them with which selector."""

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import LabelSelector
from journeyman.core.api.workloads import ReplicationController, Service, Workload
from journeyman.core.state import Workloads
from journeyman.core.state.default_spread import read_default_spread, with_default_spread
from journeyman.core.state.pod_predicates import selects
from journeyman.errors import ConfigurationError
from tests.helpers.builders import a_node, a_pod, a_running_claim
from tests.helpers.karpenter_suite import ZONES, pool, requirement, schedule, tiny

ZONE = {"maxSkew": 1, "topologyKey": labels.ZONE, "whenUnsatisfiable": "DoNotSchedule"}
SPREAD = read_default_spread({"podTopologySpread": {"defaultConstraints": [ZONE]}})


def document(*constraints):
    return {"podTopologySpread": {"defaultConstraints": list(constraints)}}


def named(kind, name, namespace="default", **spec):
    return msgspec.convert({"metadata": {"name": name, "namespace": namespace}, "spec": spec}, kind)


def owned_by(kind, name, api_version="apps/v1"):
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": "u", "controller": True}
    return {"ownerReferences": [owner]}


def selector_of(pod, workloads):
    (done,) = with_default_spread([pod], workloads, SPREAD)
    found = [c.label_selector for c in done.spec.topology_spread_constraints]
    return found[0] if found else None


def test_pods_are_unchanged_without_default_constraints():
    """An empty setting is the same as none."""
    pods = (a_pod("a"), a_pod("b"))
    assert read_default_spread(None) == ()
    assert read_default_spread({"podTopologySpread": {}}) == ()
    assert with_default_spread(pods, Workloads(services=(named(Service, "s", selector={"app": "web"}),)), ()) == pods


def test_valid_default_constraints_are_parsed():
    """Each kind may have one constraint per label, and DoNotSchedule may have minDomains."""
    anyway = {**ZONE, "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 3}

    strict, loose = read_default_spread(document({**ZONE, "minDomains": 2}, anyway))

    assert (strict.max_skew, strict.min_domains, loose.max_skew, loose.min_domains) == (1, 2, 3, None)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("zone", "Expected `object`, got `str`"),
        ({"podTopologySpreads": {}}, "unknown field `podTopologySpreads`"),
        (document({**ZONE, "labelSelector": {}}), "unknown field `labelSelector`"),
        (document({**ZONE, "matchLabelKeys": ["x"]}), "unknown field `matchLabelKeys`"),
        (document({**ZONE, "maxSkew": 0}), "maxSkew"),
        (document({**ZONE, "maxSkew": "1"}), "maxSkew"),
        (document({**ZONE, "topologyKey": ""}), "topologyKey"),
        (document({"maxSkew": 1, "topologyKey": "z"}), "whenUnsatisfiable"),
        (document({**ZONE, "whenUnsatisfiable": "Maybe"}), "whenUnsatisfiable"),
        (document({**ZONE, "minDomains": 0}), "minDomains"),
        (document({**ZONE, "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}), "needs DoNotSchedule"),
        (document(ZONE, {**ZONE, "maxSkew": 3}), "two defaultConstraints"),
    ],
)
def test_invalid_default_constraints_are_rejected_with_the_reason(bad, why):
    """Pods would stay pending if the parser ignored a constraint."""
    with pytest.raises(ConfigurationError, match=why):
        read_default_spread(bad)


def test_pod_selector_combines_its_services_and_its_owner():
    """As in kube-scheduler, Services of other pods and other namespaces do not count."""
    workloads = Workloads(
        services=(
            named(Service, "web", selector={"app": "web"}),
            named(Service, "front", selector={"tier": "front"}),
            named(Service, "other", selector={"app": "db"}),
            named(Service, "elsewhere", namespace="shop", selector={"app": "web", "tier": "front", "x": "y"}),
            named(Service, "headless"),
        ),
        replica_sets=(
            named(
                Workload,
                "web-1",
                selector={"matchExpressions": [{"key": "hash", "operator": "In", "values": ["1", "2"]}]},
            ),
        ),
    )
    pod = a_pod(
        "web-1-a", metadata={"labels": {"app": "web", "tier": "front", "hash": "1"}, **owned_by("ReplicaSet", "web-1")}
    )
    found = selector_of(pod, workloads)
    assert selects(found, {"app": "web", "tier": "front", "hash": "2"})
    assert not selects(found, {"app": "web", "tier": "front", "hash": "3"})
    assert not selects(found, {"app": "web", "hash": "1"})


@pytest.mark.parametrize(
    ("kind", "api_version", "workloads"),
    [
        ("ReplicationController", "v1", {"replication_controllers": (ReplicationController, {"app": "web"})}),
        ("StatefulSet", "apps/v1", {"stateful_sets": (Workload, {"matchLabels": {"app": "web"}})}),
        ("ReplicaSet", "apps/v1", {"replica_sets": (Workload, {"matchLabels": {"app": "web"}})}),
    ],
)
def test_owner_without_a_service_gives_the_selector(kind, api_version, workloads):
    """Only the kinds and API groups that kube-scheduler reads count."""
    ((field, (type_, selector)),) = workloads.items()
    owners = Workloads(**{field: (named(type_, "web", selector=selector),)})
    mine = a_pod("web-0", metadata=owned_by(kind, "web", api_version))
    found = selector_of(mine, owners)
    assert selects(found, {"app": "web"})
    assert not selects(found, {"app": "db"})
    assert selector_of(a_pod("web-0", metadata=owned_by(kind, "web", "example.com/v1")), owners) is None


def test_constrained_or_unselected_pods_get_no_default_spread():
    """Completed pods and pods of deleted owners do not get it either."""
    workloads = Workloads(services=(named(Service, "web", selector={"app": "web"}),))
    own = a_pod("own", spec={"topologySpreadConstraints": [{**ZONE, "whenUnsatisfiable": "ScheduleAnyway"}]})
    lonely = a_pod("lonely", metadata={"labels": {"app": "db"}, **owned_by("ReplicaSet", "gone")})
    ended = a_pod("ended", status={"phase": "Succeeded"})
    assert with_default_spread([own, lonely, ended], workloads, SPREAD) == (own, lonely, ended)


def test_an_owner_and_a_service_with_different_values_select_no_pod():
    """A relabelled pod keeps its owner reference; no pod matches both selectors."""
    workloads = Workloads(
        services=(named(Service, "web", selector={"app": "web"}),),
        replica_sets=(named(Workload, "old", selector={"matchLabels": {"app": "old"}}),),
    )
    found = selector_of(a_pod("w", metadata=owned_by("ReplicaSet", "old")), workloads)
    assert isinstance(found, LabelSelector)
    assert not selects(found, {"app": "web"})
    assert not selects(found, {"app": "old"})


HOST = {"maxSkew": 1, "topologyKey": labels.HOSTNAME, "whenUnsatisfiable": "DoNotSchedule"}
OF_WEB = {"labels": {"app": "web"}, **owned_by("ReplicaSet", "web")}
WEB = Workloads(
    replica_sets=(
        named(Workload, "web", selector={"matchLabels": {"app": "web"}}),
        named(Workload, "other", selector={"matchLabels": {"app": "other"}}),
        named(Workload, "web-old", selector={"matchLabels": {"app": "rolled", "pod-template-hash": "old"}}),
        named(Workload, "web-new", selector={"matchLabels": {"app": "rolled", "pod-template-hash": "new"}}),
    )
)


def owned(count, name="p", metadata=OF_WEB, **changes):
    """So many pods of a ReplicaSet."""
    return [tiny(f"{name}{n}", metadata=metadata, **changes) for n in range(count)]


def planned(waiting, *constraints, template=None, workloads=WEB, **cluster):
    """The plan for these pods with default constraints."""
    pods = with_default_spread(waiting, workloads, read_default_spread(document(*constraints)) if constraints else ())
    return schedule(*pods, node_pools=(pool(**(template or {})),), **cluster)


def two_zones(count=2):
    """A NodePool's template with the first zones."""
    return {"requirements": [requirement(labels.ZONE, "In", *ZONES[:count])]}


@pytest.mark.parametrize(
    ("count", "constraint", "template", "by_zone"),
    [
        (4, ZONE, {}, [1, 1, 2]),
        (3, {**ZONE, "minDomains": 3}, two_zones(), [1, 1]),
        (3, {**ZONE, "minDomains": 3}, two_zones(1), [1]),
    ],
)
def test_default_constraint_spreads_pods_over_zones(count, constraint, template, by_zone):
    """The other pods have no place."""
    plan = planned(owned(count), constraint, template=template)

    assert plan.by_label(labels.ZONE) == by_zone
    assert len(plan.results.pod_errors) == count - sum(by_zone)


def test_default_constraint_that_may_be_violated_leaves_no_pod_pending():
    """Another workload's pod blocks each host's domain only as a preference."""
    plan = planned(owned(3), {**ZONE, "whenUnsatisfiable": "ScheduleAnyway"}, template=two_zones(1))

    assert not plan.results.pod_errors


OWN = {**HOST, "maxSkew": 3, "labelSelector": {"matchLabels": {"app": "web"}}}


@pytest.mark.parametrize(
    ("waiting", "constraints", "nodes"),
    [
        (owned(3), [HOST], 3),
        (owned(3, spec={"topologySpreadConstraints": [OWN]}), [HOST], 1),
        (owned(3), [], 1),
        (owned(3, metadata={"labels": {"app": "web"}}), [HOST], 1),
    ],
)
def test_default_constraint_over_hosts_needs_a_node_for_each_pod(waiting, constraints, nodes):
    """Pods with constraints of their own, or without a selector, share one."""
    plan = planned(waiting, *constraints)

    assert not plan.results.pod_errors
    assert len(plan.results.new_claims) == nodes


def test_default_constraint_counts_running_pods():
    """Two run in zone 1, so that both new pods get zone 2."""
    amounts = {"cpu": "4", "memory": "4Gi", "pods": "2"}
    node = a_node(metadata={"labels": {labels.ZONE: ZONES[0]}}, status={"capacity": amounts, "allocatable": amounts})
    running = [a_pod(f"r{n}", cpu="1m", memory="1", node="node-default-1", metadata=OF_WEB) for n in range(2)]

    plan = planned([*running, *owned(2)], ZONE, template=two_zones(), nodes=(node,), claims=(a_running_claim(),))

    assert [plan.label_of(f"p{n}", labels.ZONE) for n in range(2)] == [ZONES[1], ZONES[1]]


@pytest.mark.parametrize(
    ("one", "other", "workloads"),
    [
        (OF_WEB, {"labels": {"app": "other"}, **owned_by("ReplicaSet", "other")}, WEB),
        (
            {"labels": {"app": "rolled", "pod-template-hash": "old"}, **owned_by("ReplicaSet", "web-old")},
            {"labels": {"app": "rolled", "pod-template-hash": "new"}, **owned_by("ReplicaSet", "web-new")},
            WEB,
        ),
        (
            {"labels": {"app": "a"}, **owned_by("Job", "j", "batch/v1")},
            {"labels": {"app": "b"}, **owned_by("Job", "j", "batch/v1")},
            Workloads(services=tuple(named(Service, app, selector={"app": app}) for app in "ab")),
        ),
    ],
    ids=["workloads", "revisions", "services"],
)
def test_each_workload_is_spread_by_itself(one, other, workloads):
    """Three pods of each, one in every zone."""
    plan = planned([*owned(3, "a", one), *owned(3, "b", other)], ZONE, workloads=workloads)

    for name in "ab":
        assert sorted(plan.label_of(f"{name}{n}", labels.ZONE) for n in range(3)) == list(ZONES)


@pytest.mark.parametrize(
    ("owner", "workloads"),
    [
        (
            owned_by("ReplicaSet", "w"),
            {"replica_sets": (named(Workload, "w", selector={"matchLabels": {"app": "web"}}),)},
        ),
        (
            owned_by("StatefulSet", "w"),
            {"stateful_sets": (named(Workload, "w", selector={"matchLabels": {"app": "web"}}),)},
        ),
        (
            owned_by("ReplicationController", "w", "v1"),
            {"replication_controllers": (named(ReplicationController, "w", selector={"app": "web"}),)},
        ),
        ({}, {"services": (named(Service, "w", selector={"app": "web"}),)}),
    ],
)
def test_labels_that_only_the_pod_has_are_not_selected(owner, workloads):
    """They differ from pod to pod."""
    pod = a_pod("p", metadata={"labels": {"app": "web", "statefulset.kubernetes.io/pod-name": "p"}, **owner})

    assert selects(selector_of(pod, Workloads(**workloads)), {"app": "web"})


@pytest.mark.parametrize(
    ("metadata", "workloads"),
    [
        ({"ownerReferences": [{**OF_WEB["ownerReferences"][0], "controller": False}]}, WEB),
        ({}, Workloads(services=(named(Service, "s", selector={}),))),
        ({}, Workloads(services=(named(Service, "s", namespace="shop", selector={"app": "web"}),))),
    ],
)
def test_owners_and_services_that_do_not_count_give_no_selector(metadata, workloads):
    """The pod gets no default constraint."""
    assert selector_of(a_pod("p", metadata={"labels": {"app": "web"}, **metadata}), workloads) is None


def test_selector_of_a_replication_controller_replaces_the_label_of_a_service():
    """kube-scheduler merges them, while the selector of a ReplicaSet applies as well."""
    workloads = Workloads(
        services=(named(Service, "web", selector={"app": "web"}),),
        replication_controllers=(named(ReplicationController, "w", selector={"app": "legacy"}),),
    )

    found = selector_of(a_pod("p", metadata=owned_by("ReplicationController", "w", "v1")), workloads)

    assert selects(found, {"app": "legacy"})
    assert not selects(found, {"app": "web"})


def test_each_pod_gets_the_configured_constraint_with_the_selector_of_its_namespace():
    """The Service of the other namespace has another selector."""
    services = (
        named(Service, "s", selector={"app": "web"}),
        named(Service, "s", namespace="shop", selector={"app": "web", "tier": "front"}),
    )
    metadata = {"labels": {"app": "web", "tier": "front"}}
    default = read_default_spread(document({**ZONE, "maxSkew": 2, "minDomains": 3}))

    here, there = with_default_spread(
        [a_pod("p", metadata=metadata), a_pod("p", metadata={**metadata, "namespace": "shop"})],
        Workloads(services=services),
        default,
    )

    found = [pod.spec.topology_spread_constraints for pod in (here, there)]
    assert [(c.max_skew, c.min_domains, c.topology_key) for (c,) in found] == [(2, 3, labels.ZONE)] * 2
    assert [selects(c.label_selector, {"app": "web"}) for (c,) in found] == [True, False]
