"""Learned sizes: which nodes teach what their instance type offers, what of it holds, and for how long."""

from datetime import timedelta

from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import LearnedSize
from journeyman.core.catalogue import with_learned_sizes
from journeyman.core.lifecycle.learned_sizes import KEPT_FOR, MAX_SIZES, known_sizes, learn_sizes, with_seen_sizes
from tests.helpers.builders import CLASS, MEDIUM, NOW, SMALL, a_node, a_node_class, a_running_claim, a_snapshot, ago
from tests.helpers.small_clusters import table

HASH = "karpenter.k8s.aws/ec2nodeclass-hash"
OFFERED = {"cpu": "3920m", "memory": "15Gi", "pods": "110", "ephemeral-storage": "17Gi"}
GIB = 2**30


def a_claim_of(name="default-1", *, settings="h1", **changes):
    metadata = {"labels": {labels.INSTANCE_TYPE: MEDIUM.name}, "annotations": {HASH: settings}}
    return a_running_claim(name, metadata=metadata, **changes)


def a_node_offering(name="default-1", **allocatable):
    amounts = {key.replace("_", "-"): value for key, value in allocatable.items()}
    return a_node(name, status={"allocatable": {**OFFERED, **amounts}})


def a_cluster(*pairs, **more):
    """A cluster of these NodeClaims and nodes; its NodeClass has the hash h1."""
    claims, nodes = zip(*pairs, strict=True) if pairs else ((), ())
    defaults = {"claims": claims, "nodes": nodes, "node_classes": (a_node_class(hash="h1"),)}
    return a_snapshot(**{**defaults, **more})


def a_size(*, memory=15 * GIB, node="node-a", last_seen=NOW, **changes):
    of = {"node_class": CLASS, "instance_type": MEDIUM.name, "image": "", "settings": "h1"}
    return LearnedSize(**{**of, "allocatable": {"memory": memory}, "node": node, "last_seen": last_seen, **changes})


def merged(stored, *seen, now=NOW):
    return with_seen_sizes(stored, seen, {CLASS: "h1"}, now)


def test_initialized_node_shows_what_its_type_offers():
    """All four resources, with the image, the settings and the node that shows it."""
    claim = a_claim_of(status={"imageID": "ami-1", "nodeName": "node-default-1"})
    [size] = known_sizes(a_cluster((claim, a_node_offering())))
    assert (size.instance_type, size.image, size.settings, size.node) == (MEDIUM.name, "ami-1", "h1", "node-default-1")
    assert size.allocatable == {"cpu": 3920, "memory": 15 * GIB, "pods": 110, "ephemeral-storage": 17 * GIB}


def test_the_least_of_all_nodes_counts():
    """Of each resource, whichever node shows it; the last that lowered one is named."""
    pairs = [
        (a_claim_of("a"), a_node_offering("a", memory="15100Mi")),
        (a_claim_of("b"), a_node_offering("b", memory="15000Mi", cpu="3900m")),
        (a_claim_of("c"), a_node_offering("c", memory="15050Mi")),
    ]
    [size] = known_sizes(a_cluster(*pairs))
    assert (size.allocatable["memory"], size.allocatable["cpu"], size.node) == (15000 * 2**20, 3900, "node-b")


@table(
    "claim, node",
    starting=(a_claim_of(true=("Launched", "Registered")), a_node_offering()),
    unnamed=(a_claim_of(status={"nodeName": "another"}), a_node_offering()),
    edited_class=(a_claim_of(settings="of an older NodeClass"), a_node_offering()),
    no_hash=(a_claim_of(settings=""), a_node_offering()),
    leaving=(a_claim_of(deleting=NOW), a_node_offering()),
    too_many_CPUs=(a_claim_of(), a_node_offering(cpu="1000")),
    too_much_memory=(a_claim_of(), a_node_offering(memory="18Gi")),
    unreadable=(a_claim_of(), a_node_offering(memory="much")),
)
def test_node_that_is_not_believed_teaches_nothing(claim, node):
    """It is not initialized, not ours, launched with other settings, leaving, or more than its machine has.

    Of two nodes of one instance, one lies about its provider id.
    """
    assert known_sizes(a_cluster((claim, node))) == ()
    liar = replace(a_node("other"), spec=a_node().spec)
    assert known_sizes(a_cluster((a_claim_of(), a_node_offering()), nodes=(a_node_offering(), liar))) == ()


def test_stored_size_holds_without_nodes_until_sixty_days_after_it_was_seen():
    """It outlives the last node, and an edit of the NodeClass ends it at once."""
    stored = (a_size(last_seen=ago(days=59)),)
    assert known_sizes(a_cluster(learned_sizes=stored)) == stored
    assert known_sizes(a_cluster(learned_sizes=(a_size(last_seen=NOW - KEPT_FOR),))) == ()
    for node_classes in ((a_node_class(hash="h2"),), ()):
        assert known_sizes(a_cluster(learned_sizes=stored, node_classes=node_classes)) == ()


def test_size_from_the_future_ends_no_later():
    """A clock that was ahead does not keep it for ever."""
    ahead = (a_size(last_seen=NOW + timedelta(days=3650)),)
    assert merged(ahead, now=NOW) == ahead
    assert merged(merged(ahead, a_size(memory=14 * GIB)), now=NOW)[0].allocatable == {"memory": 14 * GIB}


def test_larger_node_neither_raises_nor_renews_the_least():
    """So that one odd machine counts for 60 days at most; one that shows the least again renews it."""
    stored = (a_size(memory=14 * GIB, node="odd", last_seen=ago(days=30)),)
    [kept] = merged(stored, a_size())
    assert (kept.allocatable, kept.node, kept.last_seen) == ({"memory": 14 * GIB}, "odd", ago(days=30))
    [renewed] = merged(stored, a_size(memory=14 * GIB))
    assert (renewed.node, renewed.last_seen) == ("odd", NOW)


def test_sizes_are_bounded_and_in_order():
    """Those that were seen last are kept."""
    many = [a_size(instance_type=f"t{n:04}", last_seen=ago(minutes=n)) for n in reversed(range(MAX_SIZES + 5))]
    kept = merged(many)
    assert [size.instance_type for size in kept] == [f"t{n:04}" for n in range(MAX_SIZES)]


def test_type_has_the_learned_size_of_its_image():
    """Larger and smaller; while the image is unknown, the least of all images."""
    sizes = (a_size(image="ami-1", memory=14 * GIB), a_size(image="ami-2", memory=17 * GIB))

    def memory(image):
        [sized, other] = with_learned_sizes((replace(MEDIUM, image=image), SMALL), sizes)
        assert other is SMALL
        return sized.allocatable["memory"], sized.capacity["memory"]

    assert memory("ami-1") == (14 * GIB, 16 * GIB)
    assert memory("ami-2") == (17 * GIB, 17 * GIB)
    assert memory("ami-3") == (MEDIUM.allocatable["memory"], 16 * GIB)
    assert memory("") == (14 * GIB, 16 * GIB)


def test_what_was_learned_is_written_once_and_again_after_a_day():
    """The log names the type, the amounts and the node."""
    pair = (a_claim_of(), a_node_offering())
    plan = learn_sizes(a_cluster(pair))
    [record] = [action for chain in plan.chains for action in chain.actions]
    assert (record.node_class, record.settings, len(record.sizes)) == (CLASS, "h1", 1)
    assert plan.notes == (
        "m.medium offers, as node node-default-1 shows: 3.92 vCPU, 17Gi ephemeral-storage, 15Gi memory, 110 pods",
    )

    stored = known_sizes(a_cluster(pair))
    assert learn_sizes(a_cluster(pair, learned_sizes=stored)).chains == ()
    old = tuple(replace(size, last_seen=ago(days=2)) for size in stored)
    later = learn_sizes(a_cluster(pair, learned_sizes=old))
    assert (len(later.chains), later.notes) == (1, ())


def test_node_that_reports_too_much_is_reported():
    """An Event on the node and on its NodeClaim, and a gauge that returns to 0."""
    plan = learn_sizes(a_cluster((a_claim_of(), a_node_offering(cpu="1000"))))
    assert {event.ref.resource.kind for event in plan.events} == {"Node", "NodeClaim"}
    assert {event.reason for event in plan.events} == {"AllocatableNotBelieved"}
    assert "offers 1k cpu where its instance type has 4" in plan.events[0].message
    assert [o.value for o in plan.observations] == [1.0]
    assert [o.value for o in learn_sizes(a_cluster((a_claim_of(), a_node_offering()))).observations] == [0.0]
