"""How nodes are matched to NodeClaims: by provider ID, ownerReference or node name."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.scheduler import solve
from tests.helpers.builders import (
    NOW,
    TYPES,
    a_claim,
    a_launched_claim,
    a_node,
    a_pod,
    a_running_claim,
    a_snapshot,
    condition,
    provider_id_of,
)


def stripped(claim):
    """A registered NodeClaim whose provider ID was removed."""
    return a_running_claim(claim, provider_id="", status={"providerID": "", "nodeName": f"node-{claim}"})


def owned_by(claim, **changes):
    """The NodeClaim's node, with the ownerReference that registration adds."""
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": claim, "uid": f"uid-{claim}"}
    metadata = {"ownerReferences": [owner], **changes.pop("metadata", {})}
    return a_node(claim, metadata=metadata, **changes)


def joined(*, nodes=(), claims=()):
    """(node name, NodeClaim name, name of the NodeClaim that it duplicates) of each state node."""
    found = a_snapshot(nodes=tuple(nodes), claims=tuple(claims)).state_nodes
    return [
        (n.node.metadata.name if n.node else "", n.claim.metadata.name if n.claim else "", n.duplicate_of)
        for n in found
    ]


def test_node_and_nodeclaim_with_the_same_provider_id_are_one_state_node():
    """NodeClaims without a node, and unmanaged nodes, each have a state node of their own."""
    foreign = a_node("x", registered=False)
    found = joined(nodes=[a_node("a"), foreign], claims=[a_running_claim("a"), a_launched_claim("b"), a_claim("c")])

    assert found == [("", "b", ""), ("", "c", ""), ("node-a", "a", ""), ("node-x", "", "")]


def test_nodeclaim_without_provider_id_is_matched_to_the_node_that_it_owns():
    """A user edited its status; its node must not count as a node without a NodeClaim."""
    claim = stripped("a")

    assert joined(nodes=[owned_by("a")], claims=[claim]) == [("node-a", "a", "")]
    assert a_snapshot(nodes=(owned_by("a"),), claims=(claim,)).state_nodes[0].provider_id == provider_id_of("a")


def test_registered_nodeclaim_without_provider_id_is_matched_by_its_node_name():
    """The node needs no ownerReference; a NodeClaim that never registered is not matched by node name."""
    waiting = a_claim("b", true=("Launched",), status={"nodeName": "node-b"})
    found = joined(nodes=[a_node("a"), a_node("b")], claims=[stripped("a"), waiting])

    assert found == [("", "b", ""), ("node-a", "a", ""), ("node-b", "", "")]


def test_nodeclaim_is_not_matched_by_node_name_when_the_node_has_another_provider_id():
    """Node names are reused; instance IDs are not."""
    other = a_node("a", spec={"providerID": provider_id_of("z")})

    assert joined(nodes=[other], claims=[a_running_claim("a")]) == [("", "a", ""), ("node-a", "", "")]


def test_nodeclaim_with_the_provider_id_of_another_nodeclaim_is_its_duplicate():
    """The node's ownerReference decides, whether the duplicate sorts first or last by name."""
    for name in ("0", "z"):
        thief = a_launched_claim(name, provider_id=provider_id_of("a"), age=timedelta(days=1))
        found = joined(
            nodes=[owned_by("a")], claims=sorted([a_running_claim("a"), thief], key=lambda c: c.metadata.name)
        )

        assert sorted(found) == [("", name, "a"), ("node-a", "a", "")]


def test_oldest_nodeclaim_keeps_a_shared_provider_id_before_the_node_joins():
    """If several are equally old, the first by name keeps it."""
    claims = [
        a_launched_claim("a", age=timedelta(minutes=1)),
        a_launched_claim("b", age=timedelta(minutes=2), provider_id=provider_id_of("a")),
        a_launched_claim("c", age=timedelta(minutes=2), provider_id=provider_id_of("a")),
    ]

    assert joined(claims=claims) == [("", "a", "b"), ("", "b", ""), ("", "c", "b")]


def test_nodeclaim_with_a_shared_provider_id_is_no_duplicate_when_it_owns_a_node():
    """Its state node has the provider ID of the node that it owns."""
    confused = a_running_claim("b", provider_id=provider_id_of("a"))
    snapshot = a_snapshot(nodes=(owned_by("a"), owned_by("b")), claims=(a_running_claim("a"), confused))

    assert [(n.name, n.provider_id, n.duplicate_of) for n in snapshot.state_nodes] == [
        ("node-a", provider_id_of("a"), ""),
        ("node-b", provider_id_of("b"), ""),
    ]
    assert snapshot.state_nodes_by_claim["b"].node == owned_by("b")


def test_nodeclaim_that_never_registered_is_not_matched_to_the_node_of_another_instance():
    """A user edited the node's ownerReference; the node's own NodeClaim has lost its status, and is launched again."""
    node = owned_by("b", spec={"providerID": provider_id_of("a")})
    claims = [a_claim("a"), a_launched_claim("b")]

    assert joined(nodes=[node], claims=claims) == [("", "a", ""), ("", "b", ""), ("node-b", "", "")]


@pytest.mark.parametrize("name", ["0", "z"])
@pytest.mark.parametrize("named", ["node-a", ""])
def test_of_two_nodes_with_the_same_provider_id_the_one_in_the_status_is_the_nodeclaims(name, named):
    """Without a name in the status it is the one that names the NodeClaim as owner; the other one is its twin."""
    twin = a_node("a", metadata={"name": name, "uid": "uid-again"})
    claim = a_running_claim("a", status={"nodeName": named})
    nodes = sorted([owned_by("a"), twin], key=lambda n: n.metadata.name)
    snapshot = a_snapshot(nodes=tuple(nodes), claims=(claim,), pods=(a_pod("p", node=name),))

    assert joined(nodes=nodes, claims=[claim]) == sorted([("node-a", "a", ""), (name, "", "")])
    assert [(t.name, t.twin_of, t.is_unusable) for t in snapshot.twins_by_claim["a"]] == [(name, "a", True)]
    own = snapshot.state_nodes_by_claim["a"]
    assert [(n, [p.metadata.name for p in pods]) for n, pods in snapshot.pods_of_twins(own)] == [(name, ["p"])]


def test_no_pod_is_planned_for_nodes_that_share_an_instance_without_a_nodeclaim():
    """A user deleted the NodeClaim, and a tenant had created a Node with its provider id: either may be the instance's."""
    nodes = (a_node("a"), a_node("a", metadata={"name": "forged", "uid": "uid-forged"}), a_node("b"))
    snapshot = a_snapshot(nodes=nodes, claims=(a_running_claim("b"),))

    assert {n.name: n.is_unusable for n in snapshot.state_nodes} == {"node-a": True, "forged": True, "node-b": False}


def test_pods_bound_to_the_missing_node_of_a_nodeclaim_count_as_pods_of_its_instance():
    """A tenant created a Node with the provider id while the NodeClaim's own did not exist."""
    other = a_node("a", metadata={"name": "other", "uid": "uid-other"})
    snapshot = a_snapshot(nodes=(other,), claims=(a_running_claim("a"),), pods=(a_pod("p", node="node-a"),))

    own = snapshot.state_nodes_by_claim["a"]
    assert own.name == "other"
    assert [(n, [p.metadata.name for p in pods]) for n, pods in snapshot.pods_of_twins(own)] == [("node-a", ["p"])]


def test_managed_node_without_provider_id_is_ignored_until_it_has_one():
    """As in Karpenter, it would count twice beside its NodeClaim; terminating, owned and unmanaged nodes are kept."""
    nameless = {"spec": {"providerID": ""}}
    claim = a_launched_claim("a")

    assert joined(nodes=[a_node("a", **nameless)], claims=[claim]) == [("", "a", "")]
    assert joined(nodes=[a_node("a", deleting=NOW, **nameless)]) == [("node-a", "", "")]
    assert joined(nodes=[owned_by("a", **nameless)], claims=[a_running_claim("a")]) == [("node-a", "a", "")]
    unmanaged = a_node("x", registered=False, **nameless)
    assert joined(nodes=[unmanaged]) == [("node-x", "", "")]


def test_node_is_registered_by_its_label_or_by_the_condition_of_its_nodeclaim():
    """A run may crash between the two writes, and a user may remove the label."""
    bare = {"metadata": {"labels": {labels.REGISTERED: ""}}}
    by_label = a_snapshot(nodes=(a_node("a"),), claims=(a_launched_claim("a"),))
    by_condition = a_snapshot(nodes=(a_node("a", **bare),), claims=(a_running_claim("a"),))
    neither = a_snapshot(nodes=(a_node("a", registered=False),), claims=(a_launched_claim("a"),))

    assert [s.state_nodes[0].registered for s in (by_label, by_condition, neither)] == [True, True, False]


def test_node_is_terminating_only_when_it_or_its_nodeclaim_is_deleted():
    """A condition that a user wrote does not make it terminating; its instance still runs."""
    marked = a_running_claim("a", true=("Launched", "Registered", "Initialized", "InstanceTerminating"))
    gone = a_running_claim("b", deleting=NOW)
    own = a_running_claim("c")
    snapshot = a_snapshot(nodes=(a_node("a"), a_node("b"), a_node("c", deleting=NOW)), claims=(marked, gone, own))

    assert [n.is_terminating for n in snapshot.state_nodes] == [False, True, True]


@pytest.mark.parametrize(("seconds", "held"), [(0, True), (1, False)])
def test_node_that_was_deleted_before_its_nodeclaim_was_created_again_is_held(seconds, held):
    """Kubernetes deleted it with the NodeClaim that was wiped; a user who deletes it later means it."""
    adopted = a_running_claim("a", metadata={"annotations": {labels.ADOPTED: provider_id_of("a")}})
    deleted = adopted.metadata.creation_timestamp + timedelta(seconds=seconds)
    [node] = a_snapshot(nodes=(a_node("a", deleting=deleted),), claims=(adopted,)).state_nodes

    assert (node.is_held, node.is_terminating) == (held, not held)


def test_pods_are_not_scheduled_to_duplicate_nodeclaims_or_those_with_a_missing_node():
    """One NodeClaim lost its node after registration; another has the provider ID of an older NodeClaim."""
    stray = a_running_claim("a")
    thief = a_launched_claim("c", provider_id=provider_id_of("b"), age=timedelta(0))
    snapshot = a_snapshot(claims=(stray, a_launched_claim("b"), thief), pods=(a_pod("p", cpu="3"), a_pod("q", cpu="3")))

    results = solve(snapshot, Catalogue({"default": TYPES}))

    assert [(n.name, n.is_node_missing, n.is_unusable) for n in snapshot.state_nodes] == [
        ("a", True, True),
        ("b", False, False),
        ("c", False, True),
    ]
    assert {name: len(pods) for name, pods in results.existing.items() if pods} == {"b": 1}
    assert sum(len(claim.pods) for claim in results.new_claims) == 1


def test_nodeclaim_has_no_missing_node_when_its_registration_is_unknown():
    """Only a NodeClaim whose Registered condition is True can have a missing node."""
    undecided = a_launched_claim("a", status={"conditions": [condition("Registered", "Unknown")]})

    assert not a_snapshot(claims=(undecided,)).state_nodes[0].is_node_missing


def test_nodeclaim_that_two_nodes_name_as_owner_has_the_one_with_its_provider_id():
    """A user edited the owner of the other node, whose instance must not outlive its own NodeClaim."""
    old = owned_by("a", metadata={"name": "node-z", "uid": "uid-z"}, spec={"providerID": provider_id_of("z")})
    thief = a_launched_claim("b", provider_id=provider_id_of("a"), age=timedelta(days=1))

    snapshot = a_snapshot(nodes=(owned_by("a"), old), claims=(a_running_claim("a"), thief))

    assert joined(nodes=snapshot.nodes, claims=snapshot.claims) == [
        ("", "b", "a"),
        ("node-a", "a", ""),
        ("node-z", "", ""),
    ]
    assert snapshot.state_nodes_by_claim["a"].node == owned_by("a")
