"""The executor: performed actions, stopped chains, and requeues, on the in-memory API server."""

from datetime import timedelta

import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import EC2NODECLASS, LEASE, NODE, NODECLAIM, NODEPOOL, OFFERING_STATE, POD, OfferingKey
from journeyman.core.plan import (
    Chain,
    CreateObject,
    DeleteObject,
    DeletePod,
    Event,
    EvictPod,
    LaunchInstance,
    MarkOfferingUnavailable,
    ObjectRef,
    Observation,
    PatchObject,
    Plan,
    Requeue,
    ResolveNodeClass,
    Step,
    TerminateInstance,
    chain_of,
)
from journeyman.errors import (
    CloudProviderError,
    ForbiddenError,
    InvariantError,
    KubeAPIError,
    NotFoundError,
    RateLimitedError,
)
from journeyman.kube.lease import KubeLease
from journeyman.steps.load import EVERYTHING, load
from tests.helpers.builders import (
    NOW,
    ago,
    budget_body,
    claim_body,
    condition,
    merge,
    node_class_body,
    pod_body,
    pool_body,
    stamp,
)
from tests.helpers.fakes import Altered, Cluster, InterceptingStore, failing

MARK = {"metadata": {"annotations": {"marked": "yes"}}}
EVENT = Event(ref=ObjectRef(resource=NODE, name="n"), reason="Evicted", message="done")


@pytest.fixture
def cluster():
    cluster = Cluster()
    ready = {"conditions": [condition("Ready", observedGeneration=1)]}
    cluster.add(pool_body(), node_class_body(status=ready, metadata={"generation": 1}))
    return cluster


def carry_out(cluster, *chains, run=None, **plan):
    return cluster.execute(Plan(chains=chains, **plan), run=run)


def ref(cluster, resource, name, namespace=""):
    meta = cluster.server.get(resource, name, namespace=namespace)
    uid = meta["metadata"]["uid"] if isinstance(meta, dict) else meta.metadata.uid
    return ObjectRef(resource=resource, name=name, namespace=namespace, uid=uid)


def mark(name="default", *, version="", patch=MARK):
    return PatchObject(ref=ObjectRef(resource=NODEPOOL, name=name), patch=patch, why="test", resource_version=version)


def is_marked(cluster, name="default"):
    return "marked" in cluster.server.get(NODEPOOL, name)["metadata"].get("annotations", {})


def requeues(outcome):
    return {w.step: w.at for w in outcome.requeues}


def test_chains_are_independent_and_failed_ones_emit_no_events(cluster):
    """The first fails without an Event; the second succeeds with its Event."""
    failing = Chain(subject="x", actions=(mark("missing"),), events=(EVENT,), observations=(Observation(name="x"),))
    working = Chain(subject="y", actions=(mark(),), events=(EVENT,))

    outcome = carry_out(cluster, failing, working)

    assert is_marked(cluster)
    assert cluster.record.reasons == ["Evicted"]
    assert cluster.record.observations == []
    assert outcome.counts == {"PatchObject": 1, "conflicts": 1}


def test_following_chain_starts_after_the_first_succeeded(cluster):
    """Following chains are independent of one another."""
    behind = (chain_of("a", mark("missing")), Chain(subject="b", actions=(mark(),), events=(EVENT,)))

    stopped = carry_out(cluster, Chain(subject="x", actions=(mark("missing"),), then=behind))
    assert (stopped.counts, cluster.record.reasons) == ({"conflicts": 1}, [])

    done = carry_out(cluster, Chain(subject="x", actions=(mark(),), then=behind))
    assert (done.counts, cluster.record.reasons) == ({"PatchObject": 2, "conflicts": 1}, ["Evicted"])


@pytest.mark.parametrize(
    ("change", "why", "seconds"),
    [
        ({"spec": {"limits": {"cpu": "2"}}}, "cpu", 10),
        ({"metadata": {"deletionTimestamp": stamp(NOW), "finalizers": ["x"]}}, "it is deleted or invalid", 0),
        ({"metadata": {"name": "other"}}, "it is deleted or invalid", 0),
        ({"spec": {"weight": 1000}}, "it is deleted or invalid", 0),
    ],
    ids=["over its limits", "being deleted", "gone", "invalid"],
)
def test_no_claim_is_created_for_a_nodepool_that_cannot_be_used_now(change, why, seconds):
    """Provision decides again; a NodePool stays over its limits until nodes are gone. Those of other NodePools are created."""
    cluster = Cluster()
    cluster.add(merge(pool_body(), change), pool_body("second"), claim_body("there", provider_id="aws:///a/i-there"))
    chains = (
        Chain(subject=pool, actions=(CreateObject(resource=NODECLAIM, body=claim_body(pool), why="t"),), node_pool=pool)
        for pool in ("default", "second")
    )

    outcome = carry_out(cluster, *chains)

    assert [claim.metadata.name for claim in cluster.server.list(NODECLAIM).items] == ["second", "there"]
    assert outcome.notes == (f"not creating NodeClaims for NodePool default: {why}",)
    assert requeues(outcome) == {Step.PROVISION: NOW + timedelta(seconds=seconds)}


@pytest.mark.parametrize(("error", "goes_on"), [(None, True), (CloudProviderError("EC2 is down"), False)])
def test_what_follows_a_resolved_nodeclass_waits_for_the_clouds_answer(cluster, error, goes_on):
    """The NodeClass gets its conditions either way."""
    cloud = cluster.cloud if error is None else Altered(cluster.cloud, resolve=failing(error))
    cluster.server.patch(EC2NODECLASS, "default", {"spec": {"role": "another"}})
    raw = cluster.server.get(EC2NODECLASS, "default")
    resolve = ResolveNodeClass(name="default", raw=raw, at=NOW)

    outcome = carry_out(cluster, chain_of("x", resolve, mark()), run=cluster.run(cloud=cloud))

    assert is_marked(cluster) is goes_on
    assert outcome.counts.get("errors", 0) == (0 if goes_on else 1)
    [ready] = cluster.server.get(EC2NODECLASS, "default")["status"]["conditions"]
    assert (ready["status"], ready["observedGeneration"]) == ("True" if goes_on else "Unknown", 2)


def test_writes_of_others_are_conflicts_and_its_own_are_none(cluster):
    """A conflict stops the chain; the step overwrites nothing, and its next run, a second later, reads the cluster again."""

    def stranger():
        cluster.server.patch(NODEPOOL, "default", {"metadata": {"annotations": {"stranger": "yes"}}})

    def two_writes():
        version = cluster.server.get(NODEPOOL, "default")["metadata"]["resourceVersion"]
        return [mark(version=version, patch={"metadata": {"annotations": {name: "yes"}}}) for name in ("1st", "2nd")]

    store = InterceptingStore(cluster.server, "patch", 2, stranger)
    outcome = carry_out(cluster, chain_of("NodePool default", *two_writes(), mark()), run=cluster.run(store=store))
    assert outcome.counts == {"PatchObject": 1, "conflicts": 1}
    assert cluster.server.get(NODEPOOL, "default")["metadata"]["annotations"].keys() == {"1st", "stranger"}
    assert (outcome.status, requeues(outcome)) == ("done", {Step.PROVISION: NOW + timedelta(seconds=1)})

    assert carry_out(cluster, chain_of("NodePool default", *two_writes())).counts == {"PatchObject": 2}


def test_events_about_a_claim_that_was_just_created_carry_its_uid(cluster):
    """`kubectl describe` finds Events by UID, which is unknown when the claim is planned."""
    of_claim = Event(ref=ObjectRef(resource=NODECLAIM, name="c"), reason="DisruptionLaunching", message="")
    of_namesake = Event(ref=ObjectRef(resource=NODE, name="c"), reason="DisruptionLaunching", message="")
    of_former = Event(ref=ObjectRef(resource=NODECLAIM, name="c", uid="former"), reason="Finalized", message="")
    create = CreateObject(resource=NODECLAIM, body=claim_body("c"), why="test")
    carry_out(cluster, Chain(subject="NodeClaim c", actions=(create,), events=(of_claim, of_namesake, of_former)))

    uid = cluster.server.get(NODECLAIM, "c").metadata.uid
    assert [event.ref.uid for event in cluster.record.events] == [uid, "", "former"]


def test_creating_an_object_that_exists_succeeds_only_if_it_is_equal(cluster):
    """An earlier run may have crashed after the creation; a different object of that name is an error."""
    body = claim_body("mine")
    again = CreateObject(resource=NODECLAIM, body=body, why="test")
    different = CreateObject(resource=NODECLAIM, body=merge(body, {"spec": {"expireAfter": "1h"}}), why="test")

    outcome = carry_out(cluster, chain_of("a", again), chain_of("b", again), chain_of("c", different))

    assert outcome.counts == {"CreateObject": 2, "errors": 1}
    assert outcome.notes[-1].startswith("c: another object has this name")


@pytest.mark.parametrize(
    ("annotations", "counts"),
    [
        ({labels.ADOPTED: "i-1"}, {"CreateObject": 1}),
        ({labels.ADOPTED: "i-2"}, {"conflicts": 1}),
        ({}, {"conflicts": 1}),
    ],
    ids=["created by an earlier run", "adopts another instance", "was never wiped"],
)
def test_adoption_finds_only_the_nodeclaim_that_it_created_itself(cluster, annotations, counts):
    """The list that lacked any other one was stale, so the step loads and decides again."""
    cluster.add(claim_body("a", metadata={"annotations": annotations} if annotations else {}))
    adopted = claim_body("a", metadata={"annotations": {labels.ADOPTED: "i-1"}})

    outcome = carry_out(cluster, chain_of("a", CreateObject(resource=NODECLAIM, body=adopted, why="test")))

    assert outcome.counts == counts


def test_deletion_succeeds_if_the_object_is_gone_or_recreated(cluster):
    cluster.add(claim_body("reborn"))
    gone = DeleteObject(ref=ObjectRef(resource=NODECLAIM, name="gone", uid="1"), why="test")
    reborn = DeleteObject(ref=ObjectRef(resource=NODECLAIM, name="reborn", uid="former"), why="test")

    assert carry_out(cluster, chain_of("a", gone, reborn)).counts == {"DeleteObject": 2}
    assert cluster.server.get(NODECLAIM, "reborn").metadata.deletion_timestamp is None


def test_a_conditional_deletion_is_skipped_if_the_field_changed(cluster):
    """The run's own writes do not count as a change; after another client's write the step decides again."""
    cluster.add(claim_body("changed"), claim_body("ours"))

    def marked_and_deleted(name):
        meant, version = ref(cluster, NODECLAIM, name), cluster.server.get(NODECLAIM, name).metadata.resource_version
        mine = PatchObject(ref=meant, patch=MARK, why="test", resource_version=version)
        return chain_of(name, mine, DeleteObject(ref=meant, why="test", resource_version=version))

    def stranger():
        cluster.server.patch(NODECLAIM, "changed", {"metadata": {"annotations": {"stranger": "yes"}}})

    run = cluster.run(store=InterceptingStore(cluster.server, "delete", 1, stranger))
    outcome = carry_out(cluster, marked_and_deleted("changed"), marked_and_deleted("ours"), run=run)

    going = [c.metadata.name for c in cluster.server.list(NODECLAIM).items if c.metadata.deletion_timestamp]
    assert going == ["ours"]
    assert outcome.counts == {"PatchObject": 2, "DeleteObject": 1, "conflicts": 1}
    assert requeues(outcome) == {Step.PROVISION: NOW + timedelta(seconds=1)}


@pytest.mark.parametrize(
    ("name", "uid", "deletes"), [("there", "", False), ("there", "former", True), ("absent", "", True)]
)
def test_a_conditional_deletion_is_skipped_if_the_field_now_exists(cluster, name, uid, deletes):
    """The list without it was stale; an object of that name with another UID does not count."""
    cluster.add(claim_body("there"), claim_body("conclusion", metadata={"finalizers": []}))
    absent = ObjectRef(resource=NODECLAIM, name=name, uid=uid)
    deletion = DeleteObject(ref=ref(cluster, NODECLAIM, "conclusion"), why="test", unless_exists=absent)

    outcome = carry_out(cluster, chain_of("a", deletion))

    assert ("conclusion" not in {c.metadata.name for c in cluster.server.list(NODECLAIM).items}) is deletes
    assert outcome.counts == ({"DeleteObject": 1} if deletes else {"conflicts": 1})


NODE_REF = ObjectRef(resource=NODE, name="n", uid="uid-n")
"""With its UID, by which `kubectl describe node` looks for Events."""


def eviction(pod_ref):
    return Chain(subject="Pod p", actions=(EvictPod(ref=pod_ref, node=NODE_REF, why="test"),), events=(EVENT,))


@pytest.mark.parametrize(
    ("budgets", "code", "says"), [(1, "429", "violates a PDB"), (2, "500", "does not support multiple PDBs")]
)
def test_refused_eviction_is_an_event_and_no_error(cluster, budgets, code, says):
    """The server answers 429 for one PodDisruptionBudget and 500 for two; the drain retries by itself."""
    cluster.add(pod_body("p", node="n"), *(budget_body(f"web-{n}") for n in range(budgets)))
    cluster.server.sync_disruption_budgets()

    outcome = carry_out(cluster, eviction(ref(cluster, POD, "p", "default")))

    assert outcome.counts == {"evictions refused": 1}
    (event,) = cluster.record.events
    assert (event.reason, event.ref, event.type) == ("FailedDraining", NODE_REF, "Warning")
    assert "default/p" in event.message
    assert says in event.message
    assert [o.labels["code"] for o in cluster.record.observations] == [code]
    assert outcome.requeues == ()


@pytest.mark.parametrize(("is_there", "code"), [(False, "404"), (True, "409")])
def test_evicting_a_deleted_pod_succeeds_and_counts_no_eviction(cluster, is_there, code):
    if is_there:
        cluster.add(pod_body("p", node="n"))
    former = ObjectRef(resource=POD, name="p", namespace="default", uid="former")

    outcome = carry_out(cluster, eviction(former))

    assert outcome.counts == {"evictions of pods that are gone": 1}
    assert cluster.record.reasons == []
    assert [o.labels["code"] for o in cluster.record.observations] == [code]
    assert outcome.requeues == ()
    assert [p.metadata.deletion_timestamp for p in cluster.server.list(POD).items] == [None] * is_there


def test_an_eviction_that_fails_otherwise_is_an_error_with_its_code(cluster):
    """A 500 counts as a refused eviction only if its message says so."""
    cluster.add(pod_body("p", node="n"))
    broken = Altered(cluster.server, evict=failing(KubeAPIError("etcdserver: leader changed", status=500)))
    outcome = carry_out(cluster, eviction(ref(cluster, POD, "p", "default")), run=cluster.run(store=broken))
    assert outcome.counts == {"errors": 1}
    requests = [o for o in cluster.record.observations if o.name == "karpenter_pods_eviction_requests_total"]
    assert [o.labels["code"] for o in requests] == ["500"]


@pytest.mark.parametrize(
    ("error", "node", "claim", "on"),
    [
        (CloudProviderError("UnauthorizedOperation"), NODE_REF, "c", ["Node n"]),
        (CloudProviderError("UnauthorizedOperation"), None, "c", ["NodeClaim c"]),
        (CloudProviderError("UnauthorizedOperation"), NODE_REF, "", ["Node n"]),
        (CloudProviderError("UnauthorizedOperation"), None, "", []),
        (RateLimitedError("slow down"), NODE_REF, "c", []),
    ],
    ids=["node and claim", "claim", "node", "neither", "transient"],
)
def test_a_denied_instance_termination_is_an_event_on_its_node_or_claim(cluster, error, node, claim, on):
    """An Event reports an error that the user has to fix, and no transient one."""
    cluster.cloud.run_orphan("i-1", NOW)
    cluster.cloud.refusals["i-1"] = [error]
    end = TerminateInstance(provider_id="i-1", claim=claim, node=node, why="test")
    outcome = carry_out(cluster, chain_of("n", end))
    assert outcome.counts == {"errors": 1}
    assert [str(e.ref) for e in cluster.record.events] == on
    assert {(e.reason, e.type) for e in cluster.record.events} <= {("FailedTermination", "Warning")}


@pytest.mark.parametrize(
    ("kind", "error", "counts"),
    [
        (NODEPOOL, ForbiddenError("no right", status=403), {"errors": 1}),
        (NODEPOOL, NotFoundError("gone", status=404), {"conflicts": 1}),
        (POD, ForbiddenError("no right", status=403), {"errors": 1, "patches of pods refused": 1}),
    ],
)
def test_refused_patch_is_an_error_unless_its_object_is_gone(cluster, kind, error, counts):
    """Without the permission to patch pods the run patches no more of them, and counts those it tried."""

    patch = PatchObject(ref=ObjectRef(resource=kind, name="x"), patch=MARK, why="test")
    refusing = Altered(cluster.server, patch=failing(error))
    assert carry_out(cluster, chain_of("x", patch), run=cluster.run(store=refusing)).counts == counts


def test_pods_are_evicted_or_deleted_with_their_grace_period(cluster):
    """Both carry the pod's UID as precondition."""
    cluster.add(pod_body("a", node="n"), pod_body("b", node="n"), terminating_claim(NOW))
    evict = EvictPod(ref=ref(cluster, POD, "a", "default"), node=NODE_REF, why="test")

    carry_out(cluster, chain_of("a", evict), chain_of("b", force(cluster, NOW)))

    going = [cluster.server.get(POD, name, namespace="default").metadata.deletion_timestamp for name in ("a", "b")]
    assert going == [NOW + timedelta(seconds=30), NOW + timedelta(seconds=7)]


@pytest.mark.parametrize(
    ("claim", "counts"),
    [
        (None, {"conflicts": 1}),
        ({"metadata": {"uid": "uid-of-another-c"}}, {"conflicts": 1}),
        ({"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: "soon"}}}, {"conflicts": 1}),
        ({"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: stamp(NOW + timedelta(1))}}}, {"conflicts": 1}),
        ({"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: stamp(ago(days=1))}}}, {"DeletePod": 1}),
    ],
    ids=["no claim", "another claim", "no termination time", "a later one", "an earlier one"],
)
def test_pod_is_deleted_by_force_only_while_its_claim_has_the_deadline(cluster, claim, counts):
    """The run may have stood still since it decided; a conflict makes it load the cluster and decide again."""
    cluster.add(pod_body("b", node="n"), terminating_claim(NOW))
    decided = force(cluster, NOW)
    cluster.server.delete(NODECLAIM, "c")
    if claim is not None:
        cluster.add(merge(terminating_claim(NOW), claim))

    outcome = carry_out(cluster, chain_of("b", decided))

    assert outcome.counts == counts
    is_deleted = cluster.server.get(POD, "b", namespace="default").metadata.deletion_timestamp is not None
    assert is_deleted == ("DeletePod" in counts)
    assert is_deleted or requeues(outcome)


def terminating_claim(end):
    annotations = {labels.TERMINATION_TIMESTAMP: stamp(end)}
    return claim_body("c", metadata={"uid": "uid-c", "annotations": annotations, "finalizers": []})


def force(cluster, deadline):
    pod, claim = ref(cluster, POD, "b", "default"), ref(cluster, NODECLAIM, "c")
    return DeletePod(ref=pod, claim=claim, deadline=deadline, grace_period_seconds=7, why="test")


def test_instances_of_all_chains_end_in_one_request(cluster):
    """One that the cloud refuses stops its own chain only, and an Event on its node says why."""
    ids = ["i-1", "i-2", "i-3"]
    for id_ in ids:
        cluster.cloud.run_orphan(id_, NOW)
        cluster.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": id_}})
    cluster.cloud.refusals["i-2"] = [CloudProviderError("it is protected")]
    chains = (
        chain_of(
            f"instance {id_}",
            TerminateInstance(provider_id=id_, claim=id_, node=ref(cluster, NODE, id_), why="test"),
            DeleteObject(ref=ref(cluster, NODE, id_), why="test"),
        )
        for id_ in ids
    )

    outcome = carry_out(cluster, *chains)

    assert cluster.cloud.deletions == [tuple(ids)]
    assert [cluster.cloud.get(id_).state for id_ in ids] == ["shutting-down", "running", "shutting-down"]
    assert [n.metadata.name for n in cluster.server.list(NODE).items] == ["i-2"]
    assert (outcome.counts["TerminateInstance"], outcome.counts["errors"]) == (2, 1)
    [event] = cluster.record.events
    assert (event.ref.name, event.reason) == ("i-2", "FailedTermination")
    assert "it is protected" in event.message


def test_instances_end_before_what_other_chains_do(cluster):
    """A run without time for a long list of evictions ends those whose drain is over; one that has ended counts as success."""
    cluster.cloud.run_orphan("i-1", NOW)
    cluster.add(pod_body("a", node="n"))
    deletions = []
    cluster.server.on_write(lambda _write: deletions.append(list(cluster.cloud.deletions)))
    evict = EvictPod(ref=ref(cluster, POD, "a", "default"), node=NODE_REF, why="test")
    terminate, gone = (TerminateInstance(provider_id=id_, claim="", why="test") for id_ in ("i-1", "i-2"))

    outcome = carry_out(cluster, chain_of("a", evict), chain_of("b", terminate, mark()))

    assert is_marked(cluster)
    assert deletions == [[("i-1",)]] * len(deletions)
    assert outcome.counts["TerminateInstance"] == 1
    assert carry_out(cluster, chain_of("c", terminate, gone)).counts == {"TerminateInstance": 2}
    assert cluster.cloud.get("i-1").state == "shutting-down"


@pytest.mark.parametrize(
    ("name", "uid", "provider_id", "state"),
    [
        ("a", "", "", "running"),  # Karpenter's tag names no UID
        ("a", "uid-a", "", "running"),
        ("a", "uid-a", "i-1", "running"),
        ("", "uid-a", "", "running"),  # the cloud knows only the UID while it builds the instance
        ("", "uid-of-another-a", "", "shutting-down"),
        ("a", "uid-of-another-a", "", "shutting-down"),
        ("a", "uid-a", "i-2", "shutting-down"),  # the NodeClaim has another instance
    ],
)
def test_instance_is_not_terminated_if_its_claim_exists(cluster, name, uid, provider_id, state):
    """The NodeClaim was created after the list was read; the chain's actions on the node are skipped, too."""
    cluster.add(claim_body("a", provider_id=provider_id, metadata={"uid": "uid-a"}), claim_body("b"))
    cluster.cloud.run_orphan("i-1", NOW)
    orphan = TerminateInstance(provider_id="i-1", claim=name, claim_uid=uid, unless_claimed=True, why="test")
    cluster.add({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    node = DeleteObject(ref=ref(cluster, NODE, "n"), why="test")

    carry_out(cluster, chain_of("instance i-1", orphan, node))

    assert cluster.cloud.get("i-1").state == state
    assert bool(cluster.server.list(NODE).items) == (state == "running")


def test_refused_offerings_are_added_to_the_offering_state(cluster):
    """Each NodeClass gets one OfferingState at the first failure; a repeated failure writes nothing."""

    def remember(*offerings):
        return chain_of(
            "o",
            MarkOfferingUnavailable(
                node_class="default",
                offerings=offerings,
                at=NOW,
                first=timedelta(minutes=3),
                longest=timedelta(hours=1),
                reason="ICE",
            ),
        )

    first, second = OfferingKey("m.small", "a", "spot"), OfferingKey("m.large", "a", "spot")
    carry_out(cluster, remember(first))
    carry_out(cluster, remember(second))
    version = cluster.server.get(OFFERING_STATE, "default")["metadata"]["resourceVersion"]
    carry_out(cluster, remember(second))

    state = cluster.server.get(OFFERING_STATE, "default")
    assert [o["instanceType"] for o in state["status"]["unavailable"]] == ["m.large", "m.small"]
    assert state["metadata"]["resourceVersion"] == version
    assert {u.instance_type for u in load(cluster.run(), EVERYTHING).unavailable} == {"m.small", "m.large"}


def test_all_launches_are_one_batch_and_their_chains_continue(cluster):
    """The next actions of a chain, also further launches, run once the status has the instance."""
    first = [
        CreateObject(resource=NODECLAIM, body=claim_body("a"), why="test"),
        LaunchInstance(claim="a", why="test"),
        CreateObject(resource=NODECLAIM, body=claim_body("b"), why="test"),
        LaunchInstance(claim="b", why="test"),
        mark(),
    ]
    outcome = carry_out(
        cluster,
        chain_of("first", *first),
        chain_of(
            "second",
            CreateObject(resource=NODECLAIM, body=claim_body("c"), why="t"),
            LaunchInstance(claim="c", why="t"),
        ),
    )

    assert cluster.cloud.launches == ["a", "c", "b"]
    assert is_marked(cluster)
    assert outcome.counts["launched"] == 3
    claims = cluster.server.list(NODECLAIM).items
    assert all(c.status.provider_id for c in claims)


@pytest.mark.parametrize("fails", [False, True])
def test_launch_adds_the_finalizer_first_and_ends_its_chain_if_it_fails(cluster, fails):
    """No instance is launched for a claim without it, whichever client created it; further actions need the instance."""
    cluster.cloud.failures = [CloudProviderError("down")] * fails
    create = CreateObject(resource=NODECLAIM, body=claim_body("bare", metadata={"finalizers": []}), why="test")
    outcome = carry_out(cluster, chain_of("x", create, LaunchInstance(claim="bare", why="test"), mark()))
    claim = cluster.server.get(NODECLAIM, "bare")
    assert claim.metadata.finalizers == ("karpenter.sh/termination",)
    assert (bool(claim.status.provider_id), is_marked(cluster)) == (not fails, not fails)
    assert not fails or requeues(outcome) == {Step.PROVISION: NOW + timedelta(seconds=1)}


def test_the_earliest_requeue_of_a_step_is_sent_even_if_chains_fail(cluster):
    """The executor sends one message for each step; one that is due has no time.

    SQS delays a message by 15 minutes at most, so a later requeue is left to the sweep.
    """
    later, soon = NOW + timedelta(minutes=1), NOW + timedelta(seconds=5)
    latest = NOW + timedelta(minutes=15)
    chains = (
        chain_of("a", mark("missing"), Requeue(step=Step.TERMINATE, at=later, reason="late")),
        chain_of("b", Requeue(step=Step.TERMINATE, at=soon, reason="soon")),
        chain_of("c", Requeue(step=Step.CONSOLIDATE, at=NOW, reason="now")),
        chain_of("d", Requeue(step=Step.TERMINATE, at=soon, reason="as soon")),
        chain_of("e", Requeue(step=Step.INTERRUPT, at=latest, reason="last")),
        chain_of("f", Requeue(step=Step.SWEEP, at=latest + timedelta(minutes=1), reason="too late")),
    )
    carry_out(cluster, *chains)
    sent = {m.step: (m.at, m.reason) for m in cluster.queue.sent}
    assert sent.keys() == {Step.PROVISION, Step.TERMINATE, Step.CONSOLIDATE, Step.INTERRUPT}
    assert sent[Step.TERMINATE] == (soon, "soon")
    assert sent[Step.CONSOLIDATE] == (None, "now")
    assert sent[Step.INTERRUPT] == (latest, "last")


def test_requeue_after_an_error_is_delayed(cluster):
    """A permanent error would otherwise requeue the step without pause."""
    chains = (
        chain_of("x", mark("missing", version="1"), Requeue(step=Step.PROVISION, at=NOW, reason="more to do")),
        chain_of("y", CreateObject(resource=NODECLAIM, body={"metadata": {"name": "A B"}}, why="invalid")),
        chain_of("z", Requeue(step=Step.TERMINATE, at=NOW, reason="its turn")),
    )
    outcome = carry_out(cluster, *chains)
    assert outcome.counts["errors"] == 1
    assert requeues(outcome) == {Step.PROVISION: NOW + timedelta(seconds=5), Step.TERMINATE: NOW}


def test_requeues_are_sent_even_if_the_run_fails(cluster):
    """A launch without a catalogue is an invariant error and no launch that is ignored; what was decided before is not lost."""
    noted = Plan(chains=(chain_of("x", Requeue(step=Step.TERMINATE, at=NOW, reason="noted")),))
    launching = Plan(chains=(chain_of("x", LaunchInstance(claim="a", why="test")),))
    with pytest.raises(InvariantError):
        cluster.execute(noted, launching, needs_catalogue=False)
    assert [m.step for m in cluster.queue.sent] == [Step.TERMINATE]
    assert (cluster.fence.held, cluster.fence.releases) == (False, 1)


def test_failed_queue_does_not_fail_the_run(cluster):
    """The log reports it, and the sweep finds the work."""
    cluster.queue.fails = CloudProviderError("no queue")
    outcome = carry_out(cluster, chain_of("a", mark(), Requeue(step=Step.TERMINATE, at=NOW, reason="x")))
    assert outcome.status == "done"
    assert any("requeues were not sent" in message for _, message, _ in cluster.record.lines)


@pytest.mark.parametrize(("seconds", "is_second_marked"), [(54, True), (55, False)])
def test_near_the_deadline_remaining_chains_are_left_for_a_requeue(cluster, seconds, is_second_marked):
    """The first write uses all the time but the margin, which is for the result of a launch."""
    cluster.add(pool_body("second"))
    slow = InterceptingStore(cluster.server, "patch", 1, lambda: cluster.clock.advance(seconds))
    outcome = carry_out(cluster, chain_of("a", mark(), mark("second")), run=cluster.run(store=slow))
    assert (is_marked(cluster), is_marked(cluster, "second")) == (True, is_second_marked)
    assert outcome.status == ("done" if is_second_marked else "partial")
    assert requeues(outcome) == ({} if is_second_marked else {Step.PROVISION: cluster.clock.now()})


def test_launch_result_is_written_within_the_deadline_margin(cluster):
    create = CreateObject(resource=NODECLAIM, body=claim_body("a"), why="test")
    store = InterceptingStore(cluster.server, "patch", 1, lambda: cluster.clock.advance(57))
    carry_out(cluster, chain_of("x", create, LaunchInstance(claim="a", why="test")), run=cluster.run(store=store))
    assert cluster.server.get(NODECLAIM, "a").status.provider_id


@pytest.mark.parametrize("is_held_by_another", [False, True])
def test_lost_lease_stops_the_run(cluster, is_held_by_another):
    """The run writes nothing more and ends as busy; without the Lease from the start it does not read the cluster."""
    cluster.add(pool_body("second"))
    cluster.fence.checks_left = 1
    cluster.fence.held_by_other = is_held_by_another
    outcome = carry_out(cluster, chain_of("a", mark(), mark("second")))
    assert outcome.status == "busy"
    assert (is_marked(cluster), is_marked(cluster, "second")) == (not is_held_by_another, False)
    assert cluster.fence.releases == 1


@pytest.mark.parametrize("spec", ["2099", "held"])
def test_a_lease_that_no_run_holds_is_a_warning_and_a_metric(cluster, spec):
    """One that is dated ahead is acquired; one that another program renews for minutes stops the step, which must not go unseen."""
    renewed = "2099-01-01T00:00:00Z" if spec == "2099" else stamp(NOW)
    held = {"holderIdentity": "x", "leaseDurationSeconds": 40, "renewTime": renewed, "acquireTime": stamp(ago(hours=1))}
    lease = {"metadata": {"name": "provision", "namespace": "kube-system"}, "spec": held}
    cluster.server.create(LEASE, lease, namespace="kube-system")
    mine = KubeLease(cluster.server, cluster.clock, name="provision", holder="run-1")

    outcome = carry_out(cluster, chain_of("a", mark()), run=cluster.run(lease=mine))

    (warning,) = [message for level, message, _ in cluster.record.lines if level == "warning"]
    (sample,) = [o for o in cluster.record.observations if o.name == "journeyman_lease_problems_total"]
    if spec == "2099":
        assert (outcome.status, is_marked(cluster), sample.labels["problem"]) == ("done", True, "disbelieved")
        assert "no run can have written" in warning
    else:
        assert (outcome.status, is_marked(cluster), sample.labels["problem"]) == ("busy", False, "held")
        assert warning == "another run holds Lease provision"


def test_throttled_call_requeues_after_the_clouds_delay(cluster):
    """A retryable error requeues the step, and the other chains continue."""
    cluster.cloud.refusals["i-1"] = [RateLimitedError("slow down", retry_after_seconds=9)]
    terminate = TerminateInstance(provider_id="i-1", claim="", why="test")
    outcome = carry_out(cluster, chain_of("a", terminate), chain_of("b", mark()))
    assert is_marked(cluster)
    assert requeues(outcome) == {Step.PROVISION: NOW + timedelta(seconds=9)}
