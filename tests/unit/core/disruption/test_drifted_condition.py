"""The Drifted condition: when it is set and removed, and with which reason."""

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.hashes import NODEPOOL_HASH_VERSION, node_pool_hash
from journeyman.core.api.objects import NodeSelectorRequirement
from journeyman.core.catalogue import Catalogue
from journeyman.core.disruption.drifted_condition import assess_drift
from tests.helpers import builders
from tests.helpers.builders import NOW, ago, condition, merge, stamp
from tests.helpers.disrupting import SOLD_OUT
from tests.helpers.fleets import TYPES, a_catalogue, a_fleet, a_member
from tests.helpers.small_clusters import table


def a_pool(*requirements, **spec):
    """A NodePool with these requirements: (key, operator, value…)."""
    terms = [{"key": key, "operator": operator, "values": list(values)} for key, operator, *values in requirements]
    return builders.a_pool(spec=merge({"template": {"spec": {"requirements": terms}}}, spec))


POOL = a_pool((labels.CAPACITY_TYPE, "In", "on-demand"))


def a_drifting_member(name="n", *, pool=POOL, hours=2, launched="True", marked="", **claim):
    """A node whose NodeClaim has the NodePool's hash; `marked` is the reason of its Drifted condition, if it has one."""
    annotations = {labels.NODEPOOL_HASH: node_pool_hash(pool), labels.NODEPOOL_HASH_VERSION: NODEPOOL_HASH_VERSION}
    held = [condition("Launched", launched, since=ago(hours=2)), condition("Initialized", since=ago(hours=2))]
    if marked:
        held.append(condition("Drifted", since=ago(hours=1), reason=marked, message=marked))
    own = {
        "metadata": {"annotations": annotations, "creationTimestamp": stamp(ago(hours=hours))},
        "status": {"conditions": held},
    }
    return a_member(name, claim=merge(own, claim))


def assess(*members, pool=POOL, cloud=None, catalogue=None, **kwargs):
    """The assessment, in which by default the cloud answers that no instance has drifted."""
    answers = {m.claim.metadata.name: "" for m in members} if cloud is None else cloud
    snapshot = a_fleet(*members, pools=[pool] if pool is not None else [builders.a_pool("other")])
    return assess_drift(snapshot, catalogue or a_catalogue(), answers, **kwargs)


def written(assessment):
    """The Drifted condition that the plan writes, by NodeClaim: reason and message, None if it is removed."""
    found = {}
    for action in assessment.plan().actions:
        (drifted,) = [c for c in action.patch["status"]["conditions"] if c["type"] == "Drifted"] or [None]
        found[action.ref.name] = drifted and (drifted["status"], drifted["reason"], drifted["message"])
    return found


def true(reason):
    """A Drifted condition that is True."""
    return ("True", reason, reason)


# -- the condition ----------------------------------------------------------------------------------------------------


def test_node_that_the_cloud_reports_is_marked_as_drifted():
    """The reason and message are the cloud's; the node has drifted since now, at the version that was read."""
    found = assess(a_drifting_member(), cloud={"n": "AMIDrift"})

    assert written(found) == {"n": true("AMIDrift")}
    assert (found.since, found.changed) == ({"n": NOW}, {"n"})
    (patch,) = found.plan().actions
    assert (patch.resource_version, patch.subresource) == ("7", "status")
    [chain] = found.plan().chains
    assert ("n", "Drifted") in {(e.ref.name, e.reason) for e in chain.events}
    assert [log.message for log in found.plan().logs] == ["marking drifted"]


DRIFTED = a_drifting_member(marked="AMIDrift")
GONE = a_drifting_member(metadata={"deletionTimestamp": stamp(NOW)})
HOUR_AGO = ago(hours=1)


def not_launched(status):
    return a_drifting_member(launched=status, marked="AMIDrift")


@table(
    "member, cloud, since, expected",
    keeps_its_time_for_the_same_reason=(DRIFTED, "AMIDrift", {"n": HOUR_AGO}, {}),
    keeps_its_time_for_another_reason=(DRIFTED, "SubnetDrift", {"n": HOUR_AGO}, {"n": true("SubnetDrift")}),
    is_removed_and_not_False=(DRIFTED, "", {}, {"n": None}),
    is_removed_if_the_launch_is_unknown=(not_launched("Unknown"), "AMIDrift", {}, {"n": None}),
    is_removed_if_the_launch_failed=(not_launched("False"), "AMIDrift", {}, {"n": None}),
    is_left_alone_while_it_terminates=(GONE, "AMIDrift", {}, {}),
)  # fmt: skip
def test_condition_keeps_its_time_until_it_is_removed(member, cloud, since, expected):
    """Drift goes on with the oldest. A NodeClaim that is not launched has no instance that could differ."""
    found = assess(member, cloud={"n": cloud})
    assert (found.since, written(found)) == (since, expected)


def test_unknown_answer_of_the_cloud_leaves_the_condition_as_it_is():
    """The cloud did not respond, or lists no such instance; what the NodePool says still counts."""
    old = a_drifting_member("changed", metadata={"annotations": {labels.NODEPOOL_HASH: "old"}})
    found = assess(a_drifting_member("marked", marked="AMIDrift"), a_drifting_member("plain"), old, cloud={})
    assert found.since == {"marked": ago(hours=1), "changed": NOW}
    assert written(found) == {"changed": true("NodePoolDrifted")}


def test_nodeclaim_that_is_written_elsewhere_counts_and_is_not_written():
    """Two writes of conditions in one run would conflict. A node without NodePool cannot be compared."""
    found = assess(a_drifting_member(), cloud={"n": "AMIDrift"}, without_writes=frozenset({"n"}))
    assert (found.since, found.changed, written(found)) == ({"n": NOW}, frozenset(), {})
    assert written(assess(a_drifting_member(), pool=None, cloud={"n": "AMIDrift"})) == {}


def test_nodepool_that_cannot_be_evaluated_is_reported_and_takes_no_other_down():
    """The condition of its nodes stays; the other NodePool's nodes are marked."""
    template = POOL.spec.template
    unreadable = (NodeSelectorRequirement(key="a", operator="Gt", values=("many",)),)
    nodes = template.spec.model_copy(update={"requirements": unreadable})
    spec = POOL.spec.model_copy(update={"template": template.model_copy(update={"spec": nodes})})
    broken = builders.a_pool("broken").model_copy(update={"spec": spec})
    members = (a_drifting_member("a", metadata={"labels": {labels.NODEPOOL: "broken"}}), a_drifting_member("b"))
    snapshot = a_fleet(*members, pools=[broken, POOL])
    found = assess_drift(snapshot, a_catalogue("default", "broken"), {"a": "AMIDrift", "b": "AMIDrift"})

    assert written(found) == {"b": true("AMIDrift")}
    assert {(e.ref.name, e.reason) for e in found.plan().events} == {("broken", "ObjectSkipped")}


# -- reasons, in order ------------------------------------------------------------------------------------------------


def test_changed_template_is_the_first_reason():
    """The hash of the NodePool differs from the NodeClaim's; requirements do not count for it."""
    changed = a_pool((labels.CAPACITY_TYPE, "In", "spot"), template={"metadata": {"labels": {"a": "b"}}})
    assert written(assess(a_drifting_member(), pool=changed, cloud={"n": "AMIDrift"})) == {"n": true("NodePoolDrifted")}


@pytest.mark.parametrize("version", [None, "v3"])
def test_hash_of_another_version_is_not_compared(version):
    """Karpenter's hashes have other values; hydration writes the current one."""
    member = a_drifting_member()
    member.claim.metadata.annotations.pop(labels.NODEPOOL_HASH)
    if version:
        member.claim.metadata.annotations.update({labels.NODEPOOL_HASH_VERSION: version, labels.NODEPOOL_HASH: "x"})
    assert assess(member).since == {}


LINUX = {labels.OS: "linux", labels.CAPACITY_TYPE: "on-demand"}
ON_DEMAND = (labels.CAPACITY_TYPE, "In", "on-demand")


@pytest.mark.parametrize(
    ("requirements", "node", "drifts"),
    [
        ([(labels.CAPACITY_TYPE, "In", "spot")], LINUX, True),
        ([ON_DEMAND, (labels.OS, "In", "linux"), (labels.ARCH, "In", "amd64")], LINUX, True),
        ([ON_DEMAND, (labels.OS, "In", "windows")], LINUX, True),
        ([ON_DEMAND, (labels.OS, "In", "linux", "windows")], LINUX, False),
        ([ON_DEMAND, (labels.OS, "Exists")], LINUX, False),
        ([ON_DEMAND, (labels.OS, "DoesNotExist")], LINUX, True),
        ([ON_DEMAND, ("test-label", "Gt", "10")], {**LINUX, "test-label": "5"}, True),
        ([ON_DEMAND, ("test-label", "Lt", "1")], {**LINUX, "test-label": "2"}, True),
        ([ON_DEMAND, ("test-label", "NotIn", "2")], LINUX, False),
        ([ON_DEMAND, ("beta.kubernetes.io/os", "In", "linux")], LINUX, False),
    ],
)
def test_node_drifts_when_its_labels_do_not_meet_the_requirements(requirements, node, drifts):
    """The labels of the NodeClaim count; this reason comes before the cloud's."""
    pool = a_pool(*requirements)
    found = assess(a_drifting_member(pool=pool, metadata={"labels": node}), pool=pool, cloud={"n": "AMIDrift"})
    assert written(found) == {"n": true("RequirementsDrifted" if drifts else "AMIDrift")}


def test_only_nodes_that_do_not_meet_a_changed_requirement_drift():
    """Windows was removed."""
    pool = a_pool(ON_DEMAND, (labels.OS, "In", "linux"))
    systems = {name: {"labels": {**LINUX, labels.OS: name}} for name in ("linux", "windows")}
    members = [a_drifting_member(name, pool=pool, metadata=metadata) for name, metadata in systems.items()]
    assert written(assess(*members, pool=pool)) == {"windows": true("RequirementsDrifted")}


def offering(*sizes, zones=("a", "b"), capacity_types=("on-demand", "spot")):
    """A catalogue in which these types are offered in these zones and capacity types only, and the others as usual."""

    def kept(type_):
        return tuple(o for o in type_.offerings if o.zone in zones and o.capacity_type in capacity_types)

    return a_catalogue(of=tuple(replace(t, offerings=kept(t)) if t.name in sizes else t for t in TYPES))


RESERVED = {labels.CAPACITY_TYPE: "reserved"}


@table(
    "catalogue, own, drifts",
    offered=(a_catalogue(), {}, False),
    type_gone=(a_catalogue(of=tuple(t for t in TYPES if t.name != "m")), {}, True),
    no_label=(a_catalogue(), {labels.INSTANCE_TYPE: ""}, True),
    no_offering=(offering("m", zones=()), {}, True),
    other_zone=(offering("m", zones=("b",)), {}, True),
    other_capacity_type=(offering("m", capacity_types=("spot",)), {}, True),
    reservation_ended=(offering("m", capacity_types=("on-demand",)), RESERVED, False),
    reserved_and_spot_only=(offering("m", capacity_types=("spot",)), RESERVED, True),
    reserved_and_nothing=(offering("m", zones=()), RESERVED, True),
)
def test_node_drifts_when_its_offering_does_not_exist_any_more(catalogue, own, drifts):
    """It is compared after an hour; this reason comes before the cloud's."""
    pool = a_pool()
    old = a_drifting_member("old", pool=pool, metadata={"labels": own})
    young = a_drifting_member("young", pool=pool, hours=1, metadata={"labels": own})
    cloud = {"old": "AMIDrift", "young": "AMIDrift"}

    found = assess(old, young, pool=pool, catalogue=catalogue, cloud=cloud)

    expected = "InstanceTypeNotFound" if drifts else "AMIDrift"
    assert written(found) == {"old": true(expected), "young": true("AMIDrift")}


def test_unavailable_offering_exists():
    """A stock-out is no drift."""
    assert assess(a_drifting_member(), catalogue=a_catalogue(of=SOLD_OUT)).since == {}


def test_instance_types_that_could_not_be_read_cause_no_drift():
    """No types at all, or none in this zone and capacity type: their prices may be missing. The old condition stays."""
    marked = a_drifting_member("marked", marked="AMIDrift")
    assert assess(a_drifting_member(), catalogue=Catalogue({})).since == {}
    assert assess(marked, catalogue=Catalogue({})).since == {"marked": HOUR_AGO}
    without_prices = offering(*(t.name for t in TYPES), capacity_types=("spot",))
    assert assess(a_drifting_member(), catalogue=without_prices).since == {}
