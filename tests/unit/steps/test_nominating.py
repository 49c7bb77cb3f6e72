"""Nominating pods on the in-memory API server: what is refused keeps nothing waiting, what is lost is given again."""

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, POD
from journeyman.core.plan import NominatePods, ObjectRef, PatchObject, Plan, Step, chain_of
from journeyman.errors import ForbiddenError, KubeAPIError, KubeUnavailableError
from journeyman.ports import Trigger
from journeyman.steps.executor import run_step
from journeyman.steps.provision import provision
from journeyman_simulator.kubelet import Kubelets
from tests.helpers.builders import NOW, node_class_body, pod_body, pool_body
from tests.helpers.fakes import Cluster, Interfering


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.add(
        *(pod_body(name) for name in ("a", "b", "c")), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    )
    return cluster


class Refusing:
    """A store that does not let anybody nominate, in one way or another."""

    def __init__(self, store, error):
        self.store, self.error, self.asked = store, error, 0

    def __getattr__(self, name):
        return getattr(self.store, name)

    def patch_each(self, resource, patches, **_):
        self.asked += len(patches)
        return tuple(self.error for _ in patches)


def refs(cluster, *names):
    pods = [cluster.server.get(POD, name, namespace="default") for name in names]
    return tuple(ObjectRef(resource=POD, name=p.metadata.name, namespace="default", uid=p.metadata.uid) for p in pods)


def hint(cluster, *names, node="n"):
    return NominatePods(pods=refs(cluster, *names), node=node, why="test")


MARK = PatchObject(ref=ObjectRef(resource=NODE, name="n"), patch={"metadata": {"labels": {"open": "yes"}}}, why="test")


def carry_out(cluster, *chains, **changes):
    return run_step(cluster.run(**changes), Step.PROVISION, lambda hand: hand.apply(Plan(chains=chains)))


def nominations(cluster):
    return {p.metadata.name: p.status.nominated_node_name for p in cluster.server.list(POD).items}


def is_open(cluster):
    return cluster.server.get(NODE, "n").metadata.labels.get("open") == "yes"


def test_every_hint_of_a_run_is_given_before_any_node_opens(cluster):
    """Also those of later chains; an empty node takes a nomination back."""
    carry_out(cluster, chain_of("first", hint(cluster, "a"), MARK))
    writes = []
    cluster.server.on_write(lambda write: writes.append(write.name))

    outcome = carry_out(
        cluster,
        chain_of("take back", hint(cluster, "a", node="")),
        chain_of("n", MARK),
        chain_of("m", hint(cluster, "b", "c"), MARK),
    )

    assert nominations(cluster) == {"a": "", "b": "n", "c": "n"}
    assert writes[:4] == ["a", "b", "c", "n"]
    assert (outcome.counts["hints"], outcome.status) == (3, "done")


def test_hints_are_given_in_the_order_of_kube_schedulers_attempts(cluster):
    """Whatever their nodes: versions tell that order, and go on telling it."""
    writes = []
    cluster.server.on_write(lambda write: writes.append(write.name))

    first, second = replace(hint(cluster, "a", "c"), turns=(998, 1002)), replace(hint(cluster, "b"), turns=(1001,))
    carry_out(cluster, chain_of("n", first), chain_of("m", second))

    assert writes == ["a", "b", "c"]


def test_nodes_open_before_anything_else_is_written(cluster):
    """As one, since each that opens costs others their hints; a node that is gone stops its own chain alone."""
    cluster.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m"}})
    opening = {name: replace(MARK, ref=ObjectRef(resource=NODE, name=name)) for name in ("n", "gone", "m")}
    told = [
        PatchObject(ref=ref, patch={"metadata": {"labels": {"told": "yes"}}}, why="t") for ref in refs(cluster, *"abc")
    ]
    writes = []
    cluster.server.on_write(lambda write: writes.append(write.name))

    chains = [chain_of(name, first, then) for (name, first), then in zip(opening.items(), told, strict=True)]
    carry_out(cluster, *(replace(chain, opens=True) for chain in chains))

    assert writes == ["n", "m", "a", "c"]


def test_a_node_that_is_open_already_is_no_reason_to_patch_its_claim_as_a_node(cluster):
    """A claim that is seen to have registered may have nothing to change on its node."""
    told = PatchObject(ref=refs(cluster, "a")[0], patch={"status": {"phase": "Running"}}, subresource="status", why="t")

    carry_out(cluster, *(replace(chain_of(name, patch), opens=True) for name, patch in (("n", MARK), ("a", told))))

    assert is_open(cluster)
    assert cluster.server.get(POD, "a", namespace="default").status.phase == "Running"


def test_a_nomination_that_an_attempt_took_is_given_again(cluster):
    """Before the node opens, and once more after it."""

    def attempt():
        for name in nominations(cluster):
            cluster.server.patch(
                POD, name, {"status": {"nominatedNodeName": None}}, namespace="default", subresource="status"
            )

    for look in (1, 2):
        outcome = carry_out(
            cluster,
            chain_of("n", hint(cluster, "a", "b"), MARK),
            store=Interfering(cluster.server, "list", look, attempt),
        )
        assert nominations(cluster) == {"a": "n", "b": "n", "c": ""}
        assert outcome.counts["hints given again"] == 2


def test_whoever_loses_the_nomination_while_nodes_open_gets_it_again_at_once(cluster):
    """Before anything else is written: until then the room is anybody's. Those that lost nothing are left alone."""
    carry_out(cluster, chain_of("hints", hint(cluster, "a", "b", "c")))
    expected = hint(cluster, "a", "b", "c")
    told = PatchObject(ref=ObjectRef(resource=NODE, name="n"), patch={"metadata": {"labels": {"told": "yes"}}}, why="t")
    writes = []

    def attempt(write):
        writes.append(write.name)
        if len(writes) == 1:
            cluster.server.patch(
                POD, "b", {"status": {"nominatedNodeName": None}}, namespace="default", subresource="status"
            )

    cluster.server.on_write(attempt)
    outcome = carry_out(cluster, replace(chain_of("n", MARK, told), opens=True, expects=(expected,)))

    assert nominations(cluster) == {"a": "n", "b": "n", "c": "n"}
    assert writes == ["n", "b", "b", "n"]
    assert outcome.counts["hints given again"] == 1


def test_pods_that_are_gone_or_bound_need_no_hint(cluster):
    """A namesake is not the pod that was meant; the node opens, and nobody is alarmed."""
    action = hint(cluster, "a", "b", "c")
    gone, namesake, meant = action.pods
    cluster.server.delete(POD, "a", namespace="default", grace_period_seconds=0)
    action = replace(action, pods=(gone, replace(namesake, uid="another"), meant))

    outcome = carry_out(cluster, chain_of("n", action, MARK))

    assert nominations(cluster) == {"b": "", "c": "n"}
    assert is_open(cluster)
    assert outcome.counts["hints not given"] == 2
    assert [level for level, _, _ in cluster.record.lines if level == "warning"] == []


@pytest.mark.parametrize("error", [ForbiddenError("pods/status may not be patched"), KubeUnavailableError("no answer")])
def test_a_refusal_that_all_pods_would_meet_ends_the_runs_hints_and_opens_the_nodes(cluster, error):
    """Told once, with what the API server said; nothing waits for a right that is missing."""
    store = Refusing(cluster.server, error)

    outcome = carry_out(
        cluster, chain_of("n", hint(cluster, "a"), MARK), chain_of("m", hint(cluster, "b", "c"), MARK), store=store
    )

    assert store.asked == 3
    assert is_open(cluster)
    assert outcome.counts["hints not given"] == 3
    assert [message for level, message, _ in cluster.record.lines if level == "warning"] == [
        f"Pod default/a is not nominated to node n: {error.message}",
        "no more placement hints in this run",
    ]


# -- the whole step -------------------------------------------------------------------------------------------------


TRIGGER = Trigger(id="1", cluster="demo", step=Step.PROVISION, source="forwarder", reason="pods", time=NOW)


def joined(cluster, **settings):
    """Runs until the nodes of three pods are registered, with whatever the messages ask for."""
    cluster.settings = replace(cluster.settings, **settings)
    cluster.add(pool_body(), node_class_body())
    kubelets = Kubelets(cluster.server, cluster.clock, cluster.cloud)
    wakes = [NOW]
    while wakes:
        cluster.clock.advance_to(wakes[0])
        kubelets.act()
        cluster.lanes.sent.clear()
        provision(cluster.run(), TRIGGER)
        wakes = [m.at or cluster.clock.now() for m in cluster.lanes.sent if m.step is Step.PROVISION]
    nodes = {n.metadata.name: [t.key for t in n.spec.taints] for n in cluster.server.list(NODE).items}
    return {name for name in nodes if name != "n"}


def test_pods_are_nominated_when_their_nodes_join(cluster):
    """From unschedulable pods to hints, by the step's own messages; kubelets come up in between."""
    nodes = joined(cluster)

    assert set(nominations(cluster).values()) == nodes
    assert all(c.metadata.annotations[labels.PLANNED_PODS] for c in cluster.server.list(NODECLAIM).items)


@pytest.mark.parametrize("why", ["setting", "old", "silent"])
def test_kube_scheduler_is_left_alone_where_hints_are_off_or_not_understood(cluster, why):
    """Switched off, before 1.35, or if the API server does not say what it is."""
    if why == "old":
        cluster.memory.kubernetes_version = (1, 34)
    if why == "silent":

        def silent():
            raise KubeAPIError("no version")

        cluster.server.version = silent

    joined(cluster, placement_hints=why != "setting")

    assert set(nominations(cluster).values()) == {""}
