"""Each operation changes the cluster or the account, and has no effect without a target."""

from datetime import datetime, timedelta, timezone
from typing import get_args

import pytest

from journeyman.core.api.labels import NODECLAIM_TAG, NODECLAIM_UID_TAG
from journeyman.core.api.objects import EC2NODECLASS, NAMESPACE, NODE, NODECLAIM, NODEPOOL, PDB, POD
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import SkewedClock, VirtualClock
from journeyman_simulator.faults import fault_scenario
from journeyman_simulator.faults.aws_cloud import Ec2Operations, instance_records
from journeyman_simulator.faults.manifests import initial_manifests
from journeyman_simulator.faults.node_faults import NodeFaults
from journeyman_simulator.faults.operations import Operations
from journeyman_simulator.in_process_account.account import InProcessAccount
from journeyman_simulator.kubelet import Machine
from journeyman_simulator.workload_controllers import DEPLOYMENT

TYPES, ZONES = ("c5.large", "m5.large"), ("us-east-1a", "us-east-1b")
EXAMPLES = {
    "value": "true",
    "app": "web",
    "nodes": "1",
    "change": "drop-hash",
    "condition": "Ready",
    "status": "False",
    "check": "SystemStatus",
    "capacity_type": "spot",
}


class Fixture:
    """A cluster with a NodePool and a NodeClass, and an account, to which tests add nodes."""

    def __init__(self, *pools):
        self.setup = fault_scenario.ScenarioSetup(pools=pools) if pools else fault_scenario.ScenarioSetup()
        self.clock = VirtualClock(datetime(2026, 1, 5, 12, tzinfo=timezone.utc))
        self.events, self.happened = [], []
        self.server = ApiServer(self.clock)
        self.server.load(initial_manifests(self.setup))
        self.account = InProcessAccount(self.clock, types=TYPES, on_event=self.events.append)
        self.image = next(iter(self.account.seed().images.values()))
        self.skew = SkewedClock(self.clock)
        records = instance_records(lambda *_: 0.1, self.happened.append)
        self.account.instances.observers.append(records.record_event)
        self.node_faults = NodeFaults(self, self.server, self.clock, records.never_joining)
        self.hand = Ec2Operations(self.account, records)

    def machines(self):
        """Return the account's instances as machines for kubelets."""
        return tuple(
            Machine(
                provider_id=f"aws:///{i.zone}/{i.id}", node_name=i.id, running_since=i.launched_at, terminated=False
            )
            for i in self.account.instances.known.values()
        )

    def run(self, *operations):
        """Run the scenario's operations."""
        self.operations = Operations(
            fault_scenario.FaultScenario(seed=1, setup=self.setup, operations=operations),
            server=self.server,
            clock=self.clock,
            cloud=self.hand,
            node_faults=self.node_faults,
            skew=self.skew,
            types=TYPES,
            zones=ZONES,
            on_operation=lambda _: None,
        )
        self.let_pass(max(operation.at_seconds for operation in operations))

    def let_pass(self, seconds):
        """Advance the clock and run the due actors."""
        end = self.clock.now() + timedelta(seconds=seconds)
        while True:
            self.operations.act()
            self.account.act()
            due = min((d for d in (self.operations.due(), self.account.due()) if d), default=None)
            if due is None or due > end:
                break
            self.clock.advance_to(max(due, self.clock.now()))
        self.clock.advance_to(end)

    def instance(self, *, spot=False):
        return self.account.instances.launch(
            instance_type="m5.large",
            architecture="x86_64",
            subnet_id=next(iter(self.account.network.subnets)),
            image_id=self.image,
            spot=spot,
            tags={},
        )

    def node(self, name, *, spot=False):
        """Create a node with NodeClaim and running instance, a minute younger than the nodes before."""
        instance = self.instance(spot=spot)
        spec = {"providerID": f"aws:///{instance.zone}/{instance.id}"}
        self.server.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.server.patch(NODE, name, {"status": ready}, subresource="status")
        self.clock.advance(60)
        self.account.act()
        ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
        meta = {
            "name": name,
            "labels": {"karpenter.sh/nodepool": "default"},
            "finalizers": ["karpenter.sh/termination"],
        }
        meta["annotations"] = {"karpenter.sh/nodepool-hash": "1"}
        body = {"metadata": meta, "spec": {"nodeClassRef": ref, "requirements": []}}
        self.server.create(NODECLAIM, {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", **body})
        return instance

    def pod(self, name):
        spec = {"containers": [{"name": "c", "image": "pause"}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
        self.server.create(POD, body, namespace="default")
        self.server.patch(POD, name, {"status": {"phase": "Running"}}, namespace="default", subresource="status")

    def pool(self):
        return self.server.get(NODEPOOL, "default")["spec"]

    def names(self, resource):
        return sorted(item.metadata.name for item in self.server.list(resource).items)


@pytest.fixture
def fixture():
    return Fixture()


@pytest.mark.parametrize("kind", get_args(fault_scenario.AnyOperation), ids=lambda kind: kind.__name__)
def test_an_operation_without_a_target_does_nothing(fixture, kind):
    """Any part of a scenario is a valid scenario, which shrinking needs."""
    numbers = {name: EXAMPLES.get(name, 1) for name in kind.__struct_fields__ if name in kind.__annotations__}
    fields = {name: value for name, value in numbers.items() if name in EXAMPLES or name in _required(kind)}
    fixture.run(kind(at_seconds=0, **fields))
    fixture.operations.restore()
    fixture.let_pass(60)

    assert fixture.names(NODE) == fixture.names(NODECLAIM) == []
    assert fixture.account.instances.known == {}


def _required(kind):
    """Return the fields without a default."""
    fields, defaults = kind.__struct_fields__, kind.__struct_defaults__
    return [name for name in fields[: len(fields) - len(defaults)] if name != "at_seconds"]


def test_deployments_are_created_scaled_and_deleted(fixture):
    """So are their PodDisruptionBudgets."""
    fixture.run(
        fault_scenario.Deploy(at_seconds=0, app="web", replicas=3, min_available=2),
        fault_scenario.Scale(at_seconds=5, app="web", replicas=1),
    )
    budget = fixture.server.get(PDB, "web", namespace="default")
    size = fixture.server.get(DEPLOYMENT, "web", namespace="default")["spec"]["replicas"]
    fixture.run(fault_scenario.Undeploy(at_seconds=0, app="web"))

    assert (size, budget.spec.min_available) == (1, 2)
    assert not fixture.server.list(DEPLOYMENT).items
    assert not fixture.server.list(PDB).items


def test_nodepools_are_changed_and_deleted(fixture):
    """The changes are of budget, limit, template and expiry; restoring ends the expiry."""
    fixture.run(
        fault_scenario.SetBudget(at_seconds=0, pool=0, nodes="3"),
        fault_scenario.SetLimit(at_seconds=1, pool=0, cpus=8),
        fault_scenario.Drift(at_seconds=2, pool=0),
        fault_scenario.ShortenExpiry(at_seconds=3, pool=0, seconds=600),
    )
    changed = fixture.pool()
    fixture.operations.restore()
    calmed = fixture.pool()["template"]["spec"]["expireAfter"]
    fixture.run(fault_scenario.SetLimit(at_seconds=0, pool=0, cpus=0))
    limits = fixture.pool().get("limits")
    fixture.run(fault_scenario.DeletePool(at_seconds=0, pool=5))

    assert changed["disruption"]["budgets"] == [{"nodes": "3"}]
    assert changed["limits"] == {"cpu": "8"}
    assert "example.com/generation" in changed["template"]["metadata"]["labels"]
    assert (changed["template"]["spec"]["expireAfter"], calmed) == ("600s", "Never")
    assert not limits
    assert not fixture.server.list(NODEPOOL).items


def test_disruption_of_a_nodepool_is_paused_until_the_annotation_is_removed(fixture):
    """An empty value removes it."""
    paused = []
    for value in ("true", ""):
        fixture.run(fault_scenario.PauseDisruption(at_seconds=0, pool=0, value=value))
        annotations = fixture.server.list(NODEPOOL).items[0]["metadata"].get("annotations", {})
        paused.append(annotations.get("journeyman.dev/pause-disruption"))
    assert paused == ["true", None]


def test_a_nodeclass_is_broken_and_restored(fixture):
    """It selects subnets that do not exist, then its own again."""

    def found():
        terms = fixture.server.get(EC2NODECLASS, "default")["spec"]["subnetSelectorTerms"]
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in terms[0]["tags"].items()]
        return len(fixture.account.client("ec2").describe_subnets(Filters=filters)["Subnets"])

    fixture.run(fault_scenario.BreakNodeClass(at_seconds=0))
    broken = found()
    fixture.run(fault_scenario.MendNodeClass(at_seconds=0))

    assert (broken, found()) == (0, 3)


@pytest.mark.parametrize(
    ("operation", "detail_type"),
    [
        (fault_scenario.Interrupt, "EC2 Spot Instance Interruption Warning"),
        (fault_scenario.Rebalance, "EC2 Instance Rebalance Recommendation"),
        (fault_scenario.Maintenance, "AWS Health Event"),
    ],
)
def test_aws_sends_its_notices(fixture, operation, detail_type):
    """They are for the second oldest node's instance; on-demand instances are not interrupted."""
    for name in ("old", "young"):
        fixture.node(name, spot=True)
    fixture.events.clear()
    fixture.run(operation(at_seconds=0, node=1))

    assert [e["detail-type"] for e in fixture.events][-1] == detail_type
    assert "i-00000000000000002" in str(fixture.events[-1])


def test_an_interrupted_instance_ends_after_two_minutes(fixture):
    """The cloud terminates it."""
    instance = fixture.node("a", spot=True)
    fixture.run(fault_scenario.Interrupt(at_seconds=0, node=0))
    fixture.let_pass(119)
    before = instance.state
    fixture.let_pass(1)

    assert (before, instance.state) == ("running", "shutting-down")
    assert {event.by for event in fixture.happened} == {"cloud"}
    assert "terminate" not in {event.kind for event in fixture.happened}


def test_an_on_demand_instance_is_not_interrupted(fixture):
    """The operation does nothing to it."""
    instance = fixture.node("a")
    fixture.run(fault_scenario.Interrupt(at_seconds=0, node=0), fault_scenario.Rebalance(at_seconds=1, node=0))
    fixture.let_pass(300)

    assert instance.state == "running"


def test_instances_are_stopped_and_terminated_in_the_console(fixture):
    """A user does so; Spot instances cannot be stopped."""
    normal, spot = fixture.node("a"), fixture.node("b", spot=True)
    fixture.run(fault_scenario.StopInstance(at_seconds=0, node=0), fault_scenario.StopInstance(at_seconds=0, node=1))
    states = (normal.state, spot.state)
    fixture.run(fault_scenario.ConsoleTerminate(at_seconds=0, node=1))

    assert states == ("stopping", "running")
    assert spot.state == "shutting-down"
    assert [event.by for event in fixture.happened if event.kind == "terminate"] == ["human"]


def test_nodes_and_claims_are_deleted_and_edited_by_hand(fixture):
    """The operation chooses them by age, modulo their number."""
    for name in ("a", "b", "c"):
        fixture.node(name)
    fixture.run(
        fault_scenario.DeleteNode(at_seconds=0, node=0),
        fault_scenario.EditClaim(at_seconds=0, claim=1, change="drop-pool-label"),
        fault_scenario.EditClaim(at_seconds=0, claim=1, change="do-not-disrupt"),
        fault_scenario.StripFinalizer(at_seconds=0, claim=2),
        fault_scenario.DeleteClaim(at_seconds=1, claim=2),
    )
    deleted, edited = (fixture.server.get(NODECLAIM, name) for name in ("a", "b"))

    assert fixture.names(NODE) == ["b", "c"]
    assert fixture.names(NODECLAIM) == ["a", "b"]
    assert deleted.metadata.deletion_timestamp is not None
    assert "karpenter.sh/nodepool" not in edited.metadata.labels
    assert edited.metadata.annotations["karpenter.sh/do-not-disrupt"] == "true"


def test_objects_are_edited_so_that_they_name_each_other(fixture):
    """Provider id, owner and tags of the oldest become those of the next one; modulo their number."""
    ids = {name: f"aws:///us-east-1a/{fixture.node(name).id}" for name in ("a", "b")}
    for name, provider_id in ids.items():
        fixture.server.patch(NODECLAIM, name, {"status": {"providerID": provider_id}}, subresource="status")
        fixture.hand.edit_tags(provider_id, {NODECLAIM_TAG: name, NODECLAIM_UID_TAG: f"uid-{name}"})
    fixture.run(
        fault_scenario.EditClaim(at_seconds=0, claim=0, change="other-provider-id"),
        fault_scenario.EditNode(at_seconds=0, node=0, change="other-owner"),
        fault_scenario.EditTags(at_seconds=0, node=0, change="other-claim"),
        fault_scenario.EditTags(at_seconds=1, node=1, change="drop-uid"),
    )

    assert fixture.server.get(NODECLAIM, "a").status.provider_id == ids["b"]
    assert [owner.name for owner in fixture.server.get(NODE, "a").metadata.owner_references] == ["b"]
    assert dict(fixture.hand.tags(ids["a"])) == {NODECLAIM_TAG: "b", NODECLAIM_UID_TAG: "uid-b"}
    assert dict(fixture.hand.tags(ids["b"])) == {NODECLAIM_TAG: "b"}
    fixture.run(fault_scenario.EditTags(at_seconds=0, node=0, change="drop-claim"))
    assert fixture.hand.tags(ids["a"]) == {}


def test_conditions_and_ends_of_a_claim_are_forged(fixture):
    """Its other conditions stay."""
    fixture.node("a")
    fixture.run(
        fault_scenario.EditClaim(at_seconds=0, claim=0, change="say-registered"),
        fault_scenario.EditClaim(at_seconds=1, claim=0, change="say-terminating"),
        fault_scenario.EditClaim(at_seconds=2, claim=0, change="end-late"),
    )
    claim = fixture.server.get(NODECLAIM, "a")

    assert [c.type for c in claim.status.conditions] == [
        "Registered",
        "Drained",
        "VolumesDetached",
        "InstanceTerminating",
    ]
    assert claim.metadata.annotations["karpenter.sh/nodeclaim-termination-timestamp"] == "2026-01-06T12:01:02Z"


def test_offerings_are_unavailable_for_a_while(fixture):
    """One offering or all of a kind are unavailable, until faults end at the latest."""
    capacity_pools = fixture.account.capacity_pools

    def sold_out():
        now = fixture.clock.now()
        return sum(
            capacity_pools.is_out_of_stock(t, z, c, now)
            for t in TYPES
            for z in ZONES
            for c in fault_scenario.CAPACITY_TYPES
        )

    fixture.run(
        fault_scenario.OutOfStock(at_seconds=0, type=1, zone=0, capacity_type="spot", seconds=60),
        fault_scenario.OutOfStock(at_seconds=10, type=-1, zone=1, capacity_type="", seconds=600),
    )
    first = sold_out()
    fixture.let_pass(55)
    second = sold_out()
    fixture.operations.restore()

    assert (first, second, sold_out()) == (5, 4, 0)


def test_machines_never_join_and_kubelets_stop(fixture):
    """The first is permanent; a stopped kubelet starts again."""
    fixture.node("a")
    fixture.run(fault_scenario.NeverJoins(at_seconds=0), fault_scenario.StopKubelet(at_seconds=0, node=0, seconds=30))
    fixture.instance()

    def showing():
        return [machine.running_since is not None for machine in fixture.node_faults.machines()]

    silent = showing()
    fixture.let_pass(30)
    later = showing()
    fixture.operations.restore()

    assert (silent, later, showing()) == ([False, False], [True, False], [True, False])


def test_an_agent_reports_a_condition_for_a_while(fixture):
    """The node's other conditions stay."""
    fixture.node("a")
    fixture.run(
        fault_scenario.UnhealthyCondition(at_seconds=0, node=0, condition="DiskFull", status="True", seconds=30)
    )

    def reported():
        return [(c.type, c.status) for c in fixture.server.get(NODE, "a").status.conditions]

    before = reported()
    fixture.let_pass(30)

    assert (before, reported()) == ([("Ready", "True"), ("DiskFull", "True")], [("Ready", "True")])


def test_an_instance_fails_a_status_check_for_a_while(fixture):
    """EC2 reports it; all checks pass when faults end."""
    instance = fixture.node("a")

    def check():
        (entry,) = fixture.account.instances.checks.statuses([(instance.id, instance.zone)], [])
        return entry["SystemStatus"]["Status"]

    operation = fault_scenario.FailCheck(at_seconds=0, node=0, check="SystemStatus", seconds=30)
    fixture.run(operation)
    first = check()
    fixture.let_pass(30)
    second = check()
    fixture.run(operation)
    fixture.operations.restore()

    assert (first, second, check()) == ("impaired", "ok", "ok")


def test_only_static_nodepools_change_their_replicas():
    """The API server refuses replicas for others."""
    fixture = Fixture(fault_scenario.ScenarioPool(name="a"), fault_scenario.ScenarioPool(name="b", replicas=2))
    fixture.run(
        fault_scenario.SetReplicas(at_seconds=0, pool=0, replicas=3),
        fault_scenario.SetReplicas(at_seconds=0, pool=1, replicas=3),
    )

    assert [pool["spec"].get("replicas") for pool in fixture.server.list(NODEPOOL).items] == [None, 3]


def test_a_pod_completes(fixture):
    """The object stays, and is not ready."""
    fixture.pod("a")
    fixture.run(fault_scenario.CompletePod(at_seconds=0, pod=0))
    (pod,) = fixture.server.list(POD).items

    assert (pod.status.phase, [(c.type, c.status) for c in pod.status.conditions]) == (
        "Succeeded",
        [("Ready", "False")],
    )


def test_a_pod_is_resized_in_place(fixture):
    """Its other requests stay; the kubelet has yet to allocate the new ones."""
    fixture.pod("a")
    fixture.run(fault_scenario.ResizePod(at_seconds=0, pod=0, cpu_millicores=64_000))
    (pod,) = fixture.server.list(POD).items

    assert [container.resources.requests["cpu"] for container in pod.spec.containers] == ["64000m"]


def test_only_the_functions_clock_jumps(fixture):
    """Jumps add up; restoring resets them."""
    fixture.run(fault_scenario.JumpClock(at_seconds=0, seconds=90), fault_scenario.JumpClock(at_seconds=0, seconds=-30))
    off = fixture.skew.now() - fixture.clock.now()
    fixture.operations.restore()

    assert (off, fixture.skew.now()) == (timedelta(seconds=60), fixture.clock.now())


def test_pods_are_protected_and_unprotected(fixture):
    """The operation removes only annotations that an operation added."""
    for name in ("a", "b"):
        fixture.pod(name)

    def protected():
        return [p.metadata.name for p in fixture.server.list(POD).items if p.metadata.annotations]

    fixture.run(fault_scenario.Protect(at_seconds=0, pod=3), fault_scenario.Unprotect(at_seconds=10))
    after = protected()
    fixture.run(fault_scenario.Protect(at_seconds=0, pod=3))

    assert (after, protected()) == ([], ["b"])


def test_objects_are_wiped_whatever_their_finalizers(fixture):
    """NodePools of the scenario are created again, with another UID."""
    fixture.node("a")
    before = fixture.server.list(NODEPOOL).items[0]["metadata"]["uid"]
    fixture.server.patch(NODECLAIM, "a", {"metadata": {"finalizers": ["karpenter.sh/termination"]}})
    fixture.run(
        fault_scenario.WipeClaims(at_seconds=0),
        fault_scenario.WipeNodes(at_seconds=0),
        fault_scenario.WipePools(at_seconds=0),
    )
    wiped = [len(fixture.server.list(resource).items) for resource in (NODECLAIM, NODE, NODEPOOL)]
    fixture.operations.restore()
    (pool,) = fixture.server.list(NODEPOOL).items

    assert wiped == [0, 0, 0]
    assert pool["metadata"]["name"] == "default"
    assert pool["metadata"]["uid"] != before


def test_a_backup_is_restored(fixture):
    """What was deleted since is back, and what was edited is as it was. Without a backup nothing happens."""
    for name in ("a", "b"):
        fixture.node(name)
    fixture.run(
        fault_scenario.RestoreBackup(at_seconds=0),
        fault_scenario.BackUp(at_seconds=1),
        fault_scenario.WipeNodes(at_seconds=2),
        fault_scenario.SetLimit(at_seconds=2, pool=0, cpus=10),
        fault_scenario.RestoreBackup(at_seconds=3),
    )

    assert fixture.names(NODE) == fixture.names(NODECLAIM) == ["a", "b"]
    assert "limits" not in fixture.pool()


def test_the_entry_points_to_a_new_cluster_and_back(fixture):
    """The new one has the scenario's NodePools and another UID; the first one is as it was."""
    fixture.node("a")
    first = fixture.server.get(NAMESPACE, "kube-system").metadata.uid
    away = fault_scenario.RebuildCluster(at_seconds=0)
    fixture.run(away, fault_scenario.ReturnCluster(at_seconds=30))
    back = fixture.server.get(NAMESPACE, "kube-system").metadata.uid
    names = fixture.names(NODE)
    fixture.run(away)
    new = fixture.server.get(NAMESPACE, "kube-system").metadata.uid

    assert (back, names) == (first, ["a"])
    assert new != first
    assert fixture.names(NODE) == fixture.names(NODECLAIM) == []
    assert [pool["metadata"]["name"] for pool in fixture.server.list(NODEPOOL).items] == ["default"]


def test_nodes_lie_until_faults_end(fixture):
    """A forged Node has the provider id of another one and offers nothing; a kubelet reports what no machine has."""
    fixture.node("a")
    fixture.run(
        fault_scenario.ForgeNode(at_seconds=0, node=0), fault_scenario.Overstate(at_seconds=0, node=0, cpus=1000)
    )
    nodes = {node.metadata.name: node for node in fixture.server.list(NODE).items}
    fixture.operations.restore()

    assert nodes.keys() == {"a", "forged-0"}
    assert nodes["forged-0"].spec.provider_id == nodes["a"].spec.provider_id
    assert nodes["forged-0"].status.allocatable["cpu"] == "0"
    assert nodes["a"].status.allocatable["cpu"] == "1000"
    assert fixture.names(NODE) == ["a"]
    assert fixture.server.get(NODE, "a").status.allocatable.get("cpu") != "1000"
