"""Default spread constraints: valid settings, and which pods get them with which selector."""

import msgspec
import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import LabelSelector
from journeyman.core.api.workloads import ReplicationController, Service, Workload
from journeyman.core.scheduling.topology import read_default_spread, with_default_spread
from journeyman.core.state import Workloads
from journeyman.core.state.pod_predicates import selects
from journeyman.errors import ConfigurationError
from tests.helpers.builders import a_pod

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


@pytest.mark.karpenter(
    "provisioning/scheduling/defaultconstraints",
    it="should be a no-op when no defaults are configured",
)
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


@pytest.mark.karpenter(
    "provisioning/scheduling/defaultconstraints",
    it="should combine a service selector with the owner's",
)
@pytest.mark.karpenter(
    "provisioning/scheduling/defaultconstraints",
    it="should merge the selectors of every matching service",
)
@pytest.mark.karpenter(
    "provisioning/scheduling/defaultconstraints",
    it="should not deduce a selector from a non-matching service",
)
@pytest.mark.karpenter("provisioning/scheduling/defaultconstraints", it="should skip a service with a nil selector")
@pytest.mark.karpenter(
    "provisioning/scheduling/defaultconstraints",
    it="should carry a ReplicaSet's matchExpressions through verbatim",
)
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
        "web-1-a",
        metadata={"labels": {"app": "web", "tier": "front", "hash": "1"}, **owned_by("ReplicaSet", "web-1")},
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
@pytest.mark.karpenter(
    "provisioning/scheduling/defaultconstraints",
    it="should not deduce a selector from an unsupported owner kind",
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


@pytest.mark.karpenter(
    "provisioning/scheduling/defaultconstraints",
    it="should leave a pod that declares its own constraints untouched",
)
@pytest.mark.karpenter(
    "provisioning/scheduling/defaultconstraints",
    it="should tolerate an owner that no longer exists",
)
def test_constrained_or_unselected_pods_get_no_default_spread():
    """Completed pods and pods of deleted owners do not get it either."""
    workloads = Workloads(services=(named(Service, "web", selector={"app": "web"}),))
    own = a_pod("own", spec={"topologySpreadConstraints": [{**ZONE, "whenUnsatisfiable": "ScheduleAnyway"}]})
    lonely = a_pod("lonely", metadata={"labels": {"app": "db"}, **owned_by("ReplicaSet", "gone")})
    ended = a_pod("ended", status={"phase": "Succeeded"})
    assert with_default_spread([own, lonely, ended], workloads, SPREAD) == (own, lonely, ended)


@pytest.mark.karpenter(
    "provisioning/scheduling/defaultconstraints",
    it="should AND a ReplicaSet's conflicting selector, selecting nothing",
)
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
