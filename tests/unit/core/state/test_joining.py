"""Which NodeClaim is a node's: by provider id, and by what else is written down where that was tampered with."""

from datetime import timedelta

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
    """The claim, once registered, without its provider id."""
    return a_running_claim(claim, provider_id="", status={"providerID": "", "nodeName": f"node-{claim}"})


def owned_by(claim, **changes):
    """The claim's node, with its ownerReference, as registration leaves it."""
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": claim, "uid": f"uid-{claim}"}
    metadata = {"ownerReferences": [owner], **changes.pop("metadata", {})}
    return a_node(claim, metadata=metadata, **changes)


def joined(*, nodes=(), claims=()):
    """(name of the node, name of the claim, whose duplicate the claim is) of each state node."""
    found = a_snapshot(nodes=tuple(nodes), claims=tuple(claims)).state_nodes
    return [
        (n.node.metadata.name if n.node else "", n.claim.metadata.name if n.claim else "", n.duplicate_of)
        for n in found
    ]


def test_nodes_and_claims_of_one_provider_id_are_one():
    """Whatever else is there stands alone: claims on their way, nodes of others."""
    foreign = a_node("x", registered=False)
    found = joined(nodes=[a_node("a"), foreign], claims=[a_running_claim("a"), a_launched_claim("b"), a_claim("c")])

    assert found == [("", "b", ""), ("", "c", ""), ("node-a", "a", ""), ("node-x", "", "")]


def test_claim_without_provider_id_keeps_the_node_that_it_owns():
    """A user edited its status: its node must not count as one without a claim."""
    claim = stripped("a")

    assert joined(nodes=[owned_by("a")], claims=[claim]) == [("node-a", "a", "")]
    assert a_snapshot(nodes=(owned_by("a"),), claims=(claim,)).state_nodes[0].provider_id == provider_id_of("a")


def test_a_claim_that_lost_its_provider_id_keeps_the_node_it_registered_as():
    """Even if the node's owner is gone too; a claim that never registered has no such node."""
    waiting = a_claim("b", true=("Launched",), status={"nodeName": "node-b"})
    found = joined(nodes=[a_node("a"), a_node("b")], claims=[stripped("a"), waiting])

    assert found == [("", "b", ""), ("node-a", "a", ""), ("node-b", "", "")]


def test_a_node_of_that_name_with_another_instance_is_not_the_claims():
    """Names are used again; an instance id never is."""
    other = a_node("a", spec={"providerID": provider_id_of("z")})

    assert joined(nodes=[other], claims=[a_running_claim("a")]) == [("", "a", ""), ("node-a", "", "")]


def test_a_claim_that_took_over_anothers_provider_id_is_its_duplicate():
    """The node says whose it is; by name the duplicate would come last, and first."""
    for name in ("0", "z"):
        thief = a_launched_claim(name, provider_id=provider_id_of("a"), age=timedelta(days=1))
        found = joined(
            nodes=[owned_by("a")], claims=sorted([a_running_claim("a"), thief], key=lambda c: c.metadata.name)
        )

        assert sorted(found) == [("", name, "a"), ("node-a", "a", "")]


def test_before_a_node_joins_the_claim_that_was_first_has_the_instance():
    """By age, then by name."""
    claims = [
        a_launched_claim("a", age=timedelta(minutes=1)),
        a_launched_claim("b", age=timedelta(minutes=2), provider_id=provider_id_of("a")),
        a_launched_claim("c", age=timedelta(minutes=2), provider_id=provider_id_of("a")),
    ]

    assert joined(claims=claims) == [("", "a", "b"), ("", "b", ""), ("", "c", "b")]


def test_claim_with_anothers_provider_id_and_its_own_node_is_no_duplicate():
    """Its own instance is the one that its node runs on, and goes with it."""
    confused = a_running_claim("b", provider_id=provider_id_of("a"))
    snapshot = a_snapshot(nodes=(owned_by("a"), owned_by("b")), claims=(a_running_claim("a"), confused))

    assert [(n.name, n.provider_id, n.duplicate_of) for n in snapshot.state_nodes] == [
        ("node-a", provider_id_of("a"), ""),
        ("node-b", provider_id_of("b"), ""),
    ]
    assert snapshot.state_nodes_by_claim["b"].node == owned_by("b")


def test_two_nodes_of_one_instance_both_belong_to_its_claim():
    """A machine that joined anew under another name; both go when the claim goes."""
    again = a_node("a", metadata={"name": "node-again", "uid": "uid-again"})

    assert joined(nodes=[a_node("a"), again], claims=[a_running_claim("a")]) == [
        ("node-a", "a", ""),
        ("node-again", "a", ""),
    ]


def test_our_nodes_without_a_provider_id_wait_for_it():
    """Karpenter's rule: its claim already stands for it, so it would count twice. Leaving ones are looked after."""
    nameless = {"spec": {"providerID": ""}}
    claim = a_launched_claim("a")

    assert joined(nodes=[a_node("a", **nameless)], claims=[claim]) == [("", "a", "")]
    assert joined(nodes=[a_node("a", deleting=NOW, **nameless)]) == [("node-a", "", "")]
    assert joined(nodes=[owned_by("a", **nameless)], claims=[a_running_claim("a")]) == [("node-a", "a", "")]
    unmanaged = a_node("x", registered=False, **nameless)
    assert joined(nodes=[unmanaged]) == [("node-x", "", "")]


def test_a_node_counts_as_registered_by_its_label_or_its_claims_condition():
    """A run may die between the two writes, and a label is easily lost by hand: neither may hide that pods run there."""
    bare = {"metadata": {"labels": {labels.REGISTERED: ""}}}
    by_label = a_snapshot(nodes=(a_node("a"),), claims=(a_launched_claim("a"),))
    by_condition = a_snapshot(nodes=(a_node("a", **bare),), claims=(a_running_claim("a"),))
    neither = a_snapshot(nodes=(a_node("a", registered=False),), claims=(a_launched_claim("a"),))

    assert [s.state_nodes[0].registered for s in (by_label, by_condition, neither)] == [True, True, False]


def test_only_a_deletion_makes_a_node_terminating():
    """A condition that a user wrote does not: its instance runs, and its pods stay."""
    marked = a_running_claim("a", true=("Launched", "Registered", "Initialized", "InstanceTerminating"))
    gone = a_running_claim("b", deleting=NOW)
    snapshot = a_snapshot(nodes=(a_node("a"), a_node("b"), a_node("c", deleting=NOW)), claims=(marked, gone))

    assert [n.is_terminating for n in snapshot.state_nodes] == [False, True, True]


def test_no_pods_are_planned_onto_claims_that_stand_for_no_node():
    """One whose node went away after it had registered, and one that shares another's instance."""
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


def test_claim_with_unknown_registration_is_consistent():
    """Unknown is not True."""
    undecided = a_launched_claim("a", status={"conditions": [condition("Registered", "Unknown")]})

    assert not a_snapshot(claims=(undecided,)).state_nodes[0].is_node_missing


def test_a_claim_that_two_nodes_name_as_owner_has_the_instance_of_either():
    """One of them is left from before; which of them is listed last must not matter."""
    old = owned_by("a", metadata={"name": "node-z", "uid": "uid-z"}, spec={"providerID": provider_id_of("z")})
    thief = a_launched_claim("b", provider_id=provider_id_of("a"), age=timedelta(days=1))

    snapshot = a_snapshot(nodes=(owned_by("a"), old), claims=(a_running_claim("a"), thief))

    assert joined(nodes=snapshot.nodes, claims=snapshot.claims) == [
        ("", "b", "a"),
        ("node-a", "a", ""),
        ("node-z", "a", ""),
    ]
    assert snapshot.state_nodes_by_claim["a"].node == owned_by("a")
