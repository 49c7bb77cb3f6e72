"""Pod nomination on the in-memory API server: a refusal fails no run, and cleared nominations are repeated."""

import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NODE, NODECLAIM, POD
from journeyman.core.plan import NominatePods, ObjectRef, PatchObject, Plan, RenominatePods, Step, chain_of
from journeyman.errors import ForbiddenError, KubeAPIError, KubeUnavailableError
from journeyman.ports import ClusterChanged
from journeyman.steps.provision import provision
from journeyman_simulator.kubelet import Kubelets
from tests.helpers.builders import NOW, node_class_body, pod_body, pool_body
from tests.helpers.fakes import Altered, Cluster, failing


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.add(
        *(pod_body(name) for name in ("a", "b", "c")), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    )
    return cluster


def refs(cluster, *names):
    pods = [cluster.server.get(POD, name, namespace="default") for name in names]
    return tuple(ObjectRef(resource=POD, name=p.metadata.name, namespace="default", uid=p.metadata.uid) for p in pods)


def nomination(cluster, *names, node="n"):
    return NominatePods(pods=refs(cluster, *names), node=node, why="test")


MARK = PatchObject(
    ref=ObjectRef(resource=NODE, name="n"), patch={"metadata": {"labels": {"marked": "yes"}}}, why="test"
)


def carry_out(cluster, *chains, **changes):
    return cluster.execute(Plan(chains=chains), run=cluster.run(**changes))


def nominations(cluster):
    return {p.metadata.name: p.status.nominated_node_name for p in cluster.server.list(POD).items}


def is_marked(cluster):
    return cluster.server.get(NODE, "n").metadata.labels.get("marked") == "yes"


def test_all_nominations_are_written_before_any_taint_is_removed(cluster):
    """That includes those of later chains; a nomination with an empty node name clears one."""
    carry_out(cluster, chain_of("first", nomination(cluster, "a"), MARK))
    writes = []
    cluster.server.on_write(lambda write: writes.append(write.name))

    outcome = carry_out(
        cluster,
        chain_of("take back", nomination(cluster, "a", node="")),
        chain_of("n", MARK),
        chain_of("m", nomination(cluster, "b", "c"), MARK),
    )

    assert nominations(cluster) == {"a": "", "b": "n", "c": "n"}
    assert writes[:4] == ["a", "b", "c", "n"]
    assert (outcome.counts["nominations"], outcome.status) == (3, "done")


def test_taints_of_all_nodes_are_removed_before_claims_are_patched(cluster):
    """A deleted node stops only its own chain."""
    cluster.add(*({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{i:02}"}} for i in range(40)))
    names = [*(f"n{i:02}" for i in range(20)), "gone", *(f"n{i:02}" for i in range(20, 40))]
    first = [replace(MARK, ref=ObjectRef(resource=NODE, name=name)) for name in names]
    (pod,) = refs(cluster, "a")
    second = PatchObject(ref=pod, patch={"metadata": {"labels": {"later": "yes"}}}, why="t")
    writes = []
    cluster.server.on_write(lambda write: writes.append(write.name))

    carry_out(cluster, *(chain_of(patch.ref.name, patch, second) for patch in first))

    assert writes[:40] == [name for name in names if name != "gone"]
    assert set(writes[40:]) == {"a"}


def clear(cluster, *names):
    """Clear the nominations as kube-scheduler does after a failed attempt."""
    for name in names:
        patch = {"status": {"nominatedNodeName": None}}
        cluster.server.patch(POD, name, patch, namespace="default", subresource="status")


def test_cleared_nominations_are_repeated_after_the_taints_are_removed(cluster):
    """Only planned pods without a nomination are nominated again."""
    writes = []

    def attempt(write):
        writes.append(write.name)
        if writes == ["a", "b", "n"]:
            clear(cluster, "b")

    cluster.server.on_write(attempt)
    planned = nomination(cluster, "a", "b")
    outcome = carry_out(
        cluster, chain_of("n", planned, MARK), chain_of("again", RenominatePods(nominations=(planned,)))
    )

    assert nominations(cluster) == {"a": "n", "b": "n", "c": ""}
    assert writes == ["a", "b", "n", "b", "b"]
    assert outcome.counts["nominations repeated"] == 1


@pytest.mark.parametrize(("namespaces", "listed"), [(["default"], "default"), (["default", "shop"], "")])
def test_cleared_nominations_are_searched_in_the_namespace_of_their_pods(cluster, namespaces, listed):
    """One list finds those of several namespaces."""
    cluster.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    for namespace in ("default", "shop"):
        cluster.add(pod_body("p", metadata={"namespace": namespace, "uid": f"uid-{namespace}"}))
    pods = tuple(ObjectRef(resource=POD, name="p", namespace=n, uid=f"uid-{n}") for n in namespaces)
    planned, seen = NominatePods(pods=pods, node="n", why="test"), []

    def listing(resource, *, namespace="", **where):
        seen.append(namespace)
        return cluster.server.list(resource, namespace=namespace, **where)

    store = Altered(cluster.server, list=listing)
    outcome = carry_out(cluster, chain_of("again", RenominatePods(nominations=(planned,))), store=store)

    assert seen == [listed]
    assert outcome.counts["nominations repeated"] == len(namespaces)


def test_deleted_replaced_and_bound_pods_are_not_nominated(cluster):
    """A pod of the same name is not the planned one; the taint is removed, and no warning is logged."""
    action = nomination(cluster, "a", "b", "c")
    gone, namesake, meant = action.pods
    cluster.server.delete(POD, "a", namespace="default", grace_period_seconds=0)
    action = replace(action, pods=(gone, replace(namesake, uid="another"), meant))

    outcome = carry_out(cluster, chain_of("n", action, MARK))

    assert nominations(cluster) == {"b": "", "c": "n"}
    assert is_marked(cluster)
    assert outcome.counts["nominations refused"] == 2
    assert [level for level, _, _ in cluster.record.lines if level == "warning"] == []

    bound = nomination(cluster, "b")
    cluster.server.bind("default", "b", "n")
    outcome = carry_out(cluster, chain_of("again", RenominatePods(nominations=(bound,))))
    assert nominations(cluster)["b"] == ""
    assert "nominations repeated" not in outcome.counts


@pytest.mark.parametrize("error", [ForbiddenError("pods/status may not be patched"), KubeUnavailableError("no answer")])
def test_missing_permission_ends_nominations_but_removes_taints(cluster, error):
    """The run logs one warning with the API server's message, and tries no further batch of fifty."""
    names = [f"p{n:02}" for n in range(60)]
    cluster.add(*(pod_body(name) for name in names))
    asked = []

    def refuse_each(_resource, patches, **_):
        asked.extend(patches)
        return tuple(error for _ in patches)

    outcome = carry_out(
        cluster,
        chain_of("n", nomination(cluster, "a"), MARK),
        chain_of("m", nomination(cluster, *names), MARK),
        chain_of("again", RenominatePods(nominations=(nomination(cluster, "b"),))),
        store=Altered(cluster.server, patch_each=refuse_each),
    )

    assert len(asked) == 50
    assert is_marked(cluster)
    assert outcome.counts["nominations refused"] == 61
    assert [message for level, message, _ in cluster.record.lines if level == "warning"] == [
        f"failed to nominate Pod default/a to node n: {error.message}",
        "not nominating further pods in this run",
    ]


# -- the whole step -------------------------------------------------------------------------------------------------


TRIGGER = ClusterChanged(id="1", cluster="demo", step=Step.PROVISION, reason="pods", time=NOW)


def joined(cluster, **settings):
    """Run the requeued steps until the nodes of three pods are registered."""
    cluster.settings = replace(cluster.settings, **settings)
    cluster.add(pool_body(), node_class_body())
    kubelets = Kubelets(cluster.server, cluster.clock, cluster.cloud)
    wakes = [NOW]
    while wakes:
        cluster.clock.advance_to(wakes[0])
        kubelets.act()
        cluster.queue.sent.clear()
        provision(cluster.run(), TRIGGER)
        wakes = [m.at or cluster.clock.now() for m in cluster.queue.sent if m.step is Step.PROVISION]
    nodes = {n.metadata.name: [t.key for t in n.spec.taints] for n in cluster.server.list(NODE).items}
    return {name for name in nodes if name != "n"}


@pytest.mark.parametrize("version", [(1, 35), (1, 36)])
def test_pods_are_nominated_when_their_nodes_join(cluster, version):
    """The step's own requeue messages lead from unschedulable pods over registered nodes to nominations."""
    cluster.memory.kubernetes_version = version
    nodes = joined(cluster)

    assert set(nominations(cluster).values()) == nodes
    assert all(c.metadata.annotations[labels.PLANNED_PODS] for c in cluster.server.list(NODECLAIM).items)


@pytest.mark.parametrize("why", ["setting", "old", "silent"])
def test_no_pods_are_nominated_if_turned_off_or_unsupported(cluster, why):
    """The cases are: setting off, Kubernetes before 1.35, unknown version of the API server."""
    if why == "old":
        cluster.memory.kubernetes_version = (1, 34)
    if why == "silent":
        cluster.server.version = failing(KubeAPIError("no version"))

    joined(cluster, pod_nomination=why != "setting")

    assert set(nominations(cluster).values()) == {""}
