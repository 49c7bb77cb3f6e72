"""Bad input, end to end: what is wrong is told once and clearly, set aside, and everybody else goes on.

The deployed application whole (template, queues, handlers), on the in-memory API server and moto, under virtual time.
Whatever happens in a test, the cluster must come clean afterwards: no NodeClaim and no instance may be left.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest

from journeyman.core.api.objects import (
    EC2NODECLASS,
    EVENT,
    NODE,
    NODECLAIM,
    NODEPOOL,
    OFFERING_STATE,
    POD,
    Resource,
    condition_of,
    is_true,
)
from journeyman.runtime.composition import installed
from journeyman.runtime.checkout import ROOT
from journeyman.runtime.local import ACTOR, LocalDeployment, local_runtime
from journeyman.simulate.aws.event_source import Outcome
from journeyman.simulate.workloads import DEPLOYMENT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]

START = datetime(2026, 3, 2, 9, 0, 20, tzinfo=timezone.utc)
LANES = ("provision", "terminate", "consolidate")
RECEIVED_AT_MOST = 4  # template.yaml: maxReceiveCount
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
RAW_EVENT: Resource = Resource(group="", version="v1", kind="Event", plural="events", namespaced=True, type=dict)


class Died(BaseException):
    """The sandbox is gone: nothing of the run goes on."""


class Mortal:
    """Lets runs die just before or after an effect on the outside; whoever comes next runs in a new sandbox."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, *deaths: tuple[str, str]) -> None:
        """Die "before" or "after" the next effect of that kind, one death after the other; without any, live."""
        self.deaths, self.dead, self.doomed = list(deaths), False, False

    def effect(self, what: str) -> None:
        """Called before each effect. A dead run's last words are not heard either."""
        if not self.dead and self.deaths:
            when, fatal = self.deaths[0]
            self.dead = self.doomed or (when, fatal) == ("before", what)
            self.doomed = (when, fatal) == ("after", what)
            if self.dead:
                del self.deaths[0]
        if self.dead:
            raise Died(what)

    def __call__(self, handler):
        """The handler in a sandbox."""

        def invoke(event, context):
            self.dead = self.doomed = False
            return handler(event, context)

        return invoke


class MortalStore:
    """The cluster's API server, through which a run may die."""

    def __init__(self, store, mortal: Mortal) -> None:
        self._store, self._mortal = store, mortal

    def __getattr__(self, verb):
        call = getattr(self._store, verb)

        def guarded(*args, **kwargs):
            if verb in {"create", "patch", "delete", "evict"}:
                self._mortal.effect(f"{verb} {args[0].kind if isinstance(args[0], Resource) else 'Pod'}")
            return call(*args, **kwargs)

        return guarded


class MortalAccount:
    """The AWS account, through which a run may die; every failure shows, since boto3 does not try again."""

    def __init__(self, aws, mortal: Mortal) -> None:
        self._aws, self._mortal = aws, mortal

    def client(self, service: str):
        client = self._aws.client(service, max_attempts=1)
        client.meta.events.register("before-call", self._called, unique_id="mortal")
        return client

    def _called(self, model, **_):
        if not model.name.startswith(("Describe", "Get", "List")):
            self._mortal.effect(model.name)


class Stage:
    """The deployment, and what a story about bad input asks of it."""

    def __init__(self, deployment: LocalDeployment, logs: list, mortal: Mortal) -> None:
        self.deployment, self.logs, self.mortal = deployment, logs, mortal
        self.server, self.clock, self.aws, self.world = (
            deployment.server,
            deployment.clock,
            deployment.aws,
            deployment.world,
        )
        self.sqs, self.ec2 = self.aws.client("sqs"), self.aws.client("ec2")

    @contextmanager
    def cold(self):
        """A sandbox that remembers nothing takes the place of the warm one."""
        runtime = local_runtime(
            MortalAccount(self.aws, self.mortal),
            self.deployment.stack.variables,
            cluster=self.deployment.cluster,
            endpoint="https://demo.example",
            store=MortalStore(self.server.acting_as(ACTOR), self.mortal),
            clock=self.clock,
        )
        with installed(runtime):
            yield

    # -- what is there ------------------------------------------------------------------------------------------

    def node_class(self, name="default", subnets="demo", **spec):
        selected = [{"tags": {"karpenter.sh/discovery": subnets}}]
        body = {
            "role": "KarpenterNodeRole-demo",
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "subnetSelectorTerms": selected,
            "securityGroupSelectorTerms": [{"tags": {"karpenter.sh/discovery": "demo"}}],
            **spec,
        }
        self._load("karpenter.k8s.aws/v1", "EC2NodeClass", name, body)

    def pool(self, name="default", *requirements, node_class="default", disruption=None, **spec):
        wanted = [
            *({"key": k, "operator": "In", "values": list(values)} for k, *values in requirements),
            {"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m", "r"]},
        ]
        ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": node_class}
        disruption = disruption or {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s"}
        template = {"spec": {"nodeClassRef": ref, "requirements": wanted, "expireAfter": "Never"}}
        self._load("karpenter.sh/v1", "NodePool", name, {"template": template, "disruption": disruption, **spec})

    def deploy(self, name, replicas, cpu="1", **spec):
        container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}}}
        spec = {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}
        template = {"metadata": {"labels": {"app": name}}, "spec": spec}
        body = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        self._load("apps/v1", "Deployment", name, body, namespace="default")

    def _load(self, api_version, kind, name, spec, **meta):
        self.server.load([{"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **meta}, "spec": spec}])

    def create_claim(self, name, instance_type):
        """A NodeClaim made by hand."""
        ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
        wanted = [{"key": INSTANCE_TYPE, "operator": "In", "values": [instance_type]}]
        body = {"metadata": {"name": name}, "spec": {"nodeClassRef": ref, "requirements": wanted}}
        self.server.create(NODECLAIM, {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", **body})

    @property
    def zones(self):
        """The zones of the account's subnets."""
        return sorted({s["AvailabilityZone"] for s in self.ec2.describe_subnets()["Subnets"]})

    # -- what happens -------------------------------------------------------------------------------------------

    def send(self, body, lane="Provision"):
        body = body if isinstance(body, str) else json.dumps(body)
        url = self.deployment.stack.queue_urls[f"{lane}Queue"]
        group = {"MessageGroupId": "demo"} if url.endswith(".fifo") else {}
        return self.sqs.send_message(QueueUrl=url, MessageBody=body, **group)["MessageId"]

    def run(self, **span):
        self.world.run_for(timedelta(**span))

    def until(self, done, waiting_for, **within):
        began = self.clock.now()
        self.world.run_until(done, within=timedelta(**within), waiting_for=waiting_for)
        return (self.clock.now() - began).total_seconds()

    def until_running(self, app, number, **within):
        return self.until(lambda: self.running(app) == number, f"{number} pods of {app}", **within or {"minutes": 3})

    # -- what came of it ----------------------------------------------------------------------------------------

    def pods(self, app):
        return [p for p in self.server.list(POD).items if p.metadata.labels.get("app") == app]

    def running(self, app):
        return sum(p.status.phase == "Running" for p in self.pods(app))

    def claims(self):
        return self.server.list(NODECLAIM).items

    def condition(self, resource, name, type_):
        found = self.server.get(resource, name)["status"]["conditions"]
        return next(c for c in found if c["type"] == type_)

    def events(self, reason, name=""):
        found = [e for e in self.server.list(RAW_EVENT).items if e["reason"] == reason]
        return [e["message"] for e in found if e["involvedObject"]["name"].startswith(name)]

    def lines(self, *levels, **fields):
        wanted = {level.upper() for level in levels or ("warning", "error")}
        found = [line for line in self.logs if line["level"] in wanted]
        return [line for line in found if all(line.get(name) == value for name, value in fields.items())]

    def dead_letters(self, lane="Provision"):
        url = self.deployment.stack.queue_urls[f"{lane}DeadLetters"]
        received = self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
        return [message["Body"] for message in received.get("Messages", [])]

    def instances_by_claim(self):
        """How many instances were ever launched for each claim."""
        counts: dict[str, int] = {}
        for page in self.ec2.get_paginator("describe_instances").paginate():
            for instance in (i for r in page["Reservations"] for i in r["Instances"]):
                tags = {t["Key"]: t["Value"] for t in instance["Tags"]}
                counts[tags["karpenter.sh/nodeclaim"]] = counts.get(tags["karpenter.sh/nodeclaim"], 0) + 1
        return counts

    def invocations(self, function):
        return self.deployment.stack.functions[f"{function}Function"].invocations

    # -- the end ------------------------------------------------------------------------------------------------

    def clear(self):
        """Take everything away; what is ours must go by itself."""
        for resource in (DEPLOYMENT, NODEPOOL):
            for item in self.server.list(resource).items:
                meta = item["metadata"]
                self.server.delete(resource, meta["name"], namespace=meta.get("namespace", ""))
        for pod in self.server.list(POD).items:
            if not pod.metadata.owner_references:
                self.server.delete(POD, pod.metadata.name, namespace=pod.metadata.namespace, grace_period_seconds=0)
        for url in self.deployment.stack.dead_letter_urls:
            self.sqs.purge_queue(QueueUrl=url)
        self.until(lambda: not self.claims() and not self.deployment.leftovers(), "an empty cluster", minutes=15)
        for resource in (EC2NODECLASS, OFFERING_STATE):
            for item in self.server.list(resource).items:
                self.server.patch(resource, item["metadata"]["name"], {"metadata": {"finalizers": None}})
                self.server.delete(resource, item["metadata"]["name"])
        for event in self.server.list(EVENT).items:
            self.server.delete(EVENT, event.metadata.name, namespace=event.metadata.namespace)
        self.logs.clear()


@pytest.fixture(scope="module")
def deployed() -> Iterator[Stage]:
    """One deployment for all stories: reading the catalogue takes longer than any of them."""
    logs: list = []
    mortal = Mortal()
    with LocalDeployment(start=START, on_log=logs.append) as deployment:
        for function in deployment.stack.functions.values():
            function.handler, function.fatal = mortal(function.handler), (Died,)
        stage = Stage(deployment, logs, mortal)
        with stage.cold():
            yield stage


@pytest.fixture
def stage(deployed: Stage) -> Iterator[Stage]:
    """An empty cluster, and the check that it is empty again."""
    yield deployed
    deployed.mortal.reset()
    deployed.clear()
    assert set(deployed.instances_by_claim().values()) <= {1}
    assert not [i for f in ("Provision", "Sweep") for i in deployed.invocations(f) if i.outcome is Outcome.FAILED]


@pytest.fixture
def usual(stage: Stage) -> Stage:
    """The usual NodeClass and NodePool."""
    stage.node_class()
    stage.pool()
    return stage


def pending(**fields):
    """What the forwarder sends."""
    body = {"version": "1", "source": "forwarder", "id": "m-1", "time": START.isoformat(), "cluster": "demo"}
    return body | {"reason": "3 pods are pending"} | fields


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ('{"version": "1", "source": "forwarder", "cluster"', "MalformedEventError"),
        (pending(cluster="elsewhere"), "UnknownClusterError"),
    ],
    ids=["malformed", "unknown cluster"],
)
def test_a_bad_message_ends_in_the_dead_letter_queue_and_holds_nobody_up(usual, bad, error):
    """The good message of its batch is served; each attempt gives one line; who comes later is not kept waiting."""
    ours = usual.send(bad)
    usual.send(pending(id=f"beside {ours}"))
    usual.deploy("web", 3)

    waited = usual.until_running("web", 3)
    usual.deploy("later", 3, cpu="2")
    waited_later = usual.until_running("later", 3)
    usual.run(minutes=1)

    first = next(i for i in usual.invocations("Provision") if ours in [r["messageId"] for r in i.event["Records"]])
    assert len(first.event["Records"]) > 1
    assert first.response == {"batchItemFailures": [{"itemIdentifier": ours}]}
    assert waited <= 90
    assert waited_later <= 90
    assert usual.dead_letters() == [bad if isinstance(bad, str) else json.dumps(bad)]
    lines = usual.lines("error")
    assert len(lines) == RECEIVED_AT_MOST
    assert {line["error"] for line in lines} == {error}
    assert all(line["to_do"] for line in lines)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {
                "disruption": {
                    "consolidateAfter": "0s",
                    "budgets": [{"nodes": "1", "schedule": "at noon", "duration": "1h"}],
                }
            },
            "schedule",
        ),
        ({"requirements": [("kubernetes.io/hostname", "mine")]}, "kubernetes.io/hostname"),
        ({"limits": {"cpu": "many"}}, "many"),
    ],
    ids=["a schedule that is none", "a restricted label", "a quantity that does not parse"],
)
def test_an_invalid_nodepool_says_what_is_wrong_with_it_and_the_others_serve(usual, spec, said):
    """One condition with the reason and the offending value; the pods run on the pool that is valid."""
    spec = dict(spec)
    usual.pool("broken", *spec.pop("requirements", ()), weight=50, **spec)
    usual.deploy("web", 3)

    usual.until_running("web", 3)

    refused = usual.condition(NODEPOOL, "broken", "ValidationSucceeded")
    assert (refused["status"], refused["reason"]) == ("False", "NodePoolValidationFailed")
    assert said in refused["message"]
    assert usual.condition(NODEPOOL, "broken", "Ready")["status"] == "False"
    assert usual.condition(NODEPOOL, "default", "Ready")["status"] == "True"
    assert {claim.metadata.labels["karpenter.sh/nodepool"] for claim in usual.claims()} == {"default"}
    assert said in usual.lines("warning", NodePool={"name": "broken"})[0]["message"]


def test_a_pod_whose_quantity_does_not_parse_is_told_so_and_all_others_run(usual):
    """An API server refuses such a pod; one that got in some other way must not stop the cluster."""
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": "1 core"}}}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "odd", "namespace": "default"},
        "spec": {"containers": [container], "schedulerName": "another"},
        "status": {"phase": "Pending", "conditions": [unschedulable]},
    }
    usual.server.load([body])
    usual.deploy("web", 3)

    usual.until_running("web", 3)
    usual.run(minutes=2)

    (message,) = usual.events("FailedScheduling", "odd")
    assert "'1 core' is not a quantity" in message
    assert usual.running("web") == 3
    assert not usual.lines("error")


def test_instance_types_that_do_not_exist_are_named_and_other_pools_and_pods_go_on(usual):
    """A pool that asks for none that exists, a pod that does, a claim whose type went, and a node whose type went."""
    usual.pool("dreams", (INSTANCE_TYPE, "m5.imaginary"))
    usual.deploy("web", 3)
    usual.deploy("choosy", 1, nodeSelector={INSTANCE_TYPE: "m5.imaginary"})
    usual.deploy("dreamy", 1, nodeSelector={"karpenter.sh/nodepool": "dreams"})
    usual.until_running("web", 3)
    (node,) = usual.server.list(NODE).items
    gone = {"metadata": {"labels": {INSTANCE_TYPE: "m1.gone"}}}
    for resource, name in ((NODE, node.metadata.name), (NODECLAIM, usual.claims()[0].metadata.name)):
        usual.server.patch(resource, name, gone)
    usual.create_claim("stray", "m1.gone")

    usual.deploy("later", 3, cpu="2")
    usual.until_running("later", 3)
    usual.run(minutes=2)

    assert (usual.running("web"), usual.running("choosy"), usual.running("dreamy")) == (3, 0, 0)
    (choosy,), (dreamy,) = usual.events("FailedScheduling", "choosy"), usual.events("FailedScheduling", "dreamy")
    assert "m5.imaginary" in choosy
    assert "NodePool dreams: no instance type satisfies its requirements" in dreamy
    assert "m5.imaginary" in usual.events("NoCompatibleInstanceTypes", "dreams")[0]
    assert "stray" not in {claim.metadata.name for claim in usual.claims()}
    assert "instance types" in usual.events("InsufficientCapacityError", "stray")[0]
    assert not usual.lines("error")


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError"])
def test_a_launch_that_the_cloud_fails_is_tried_again_with_patience_and_never_doubled(usual, code):
    """The claim stays, says why, and waits longer each time; then it gets its one instance."""
    usual.aws.fail_next("CreateFleet", code, 4)
    usual.deploy("web", 3)

    usual.until(usual.claims, "a claim", minutes=2)
    (claim,) = usual.claims()
    launched = condition_of(claim.status.conditions, "Launched")
    assert (launched.status, launched.reason) == ("Unknown", code)
    waited = usual.until_running("web", 3)

    assert [c.metadata.uid for c in usual.claims()] == [claim.metadata.uid]
    assert is_true(usual.claims()[0].status.conditions, "Launched")
    assert usual.instances_by_claim()[claim.metadata.name] == 1
    assert 10 <= waited <= 150
    assert not usual.dead_letters()


def test_a_throttled_cold_start_leaves_a_wake_up(usual):
    """DescribeInstanceTypes is refused to a sandbox that knows no type yet; its pods run once AWS answers again."""
    with usual.cold():
        usual.aws.fail_next("DescribeInstanceTypes", "RequestLimitExceeded", 1)
        usual.deploy("web", 3)
        waited = usual.until_running("web", 3)

    throttled = [line for line in usual.lines("warning") if "DescribeInstanceTypes" in json.dumps(line)]
    assert len(throttled) == 1
    assert waited <= 60
    assert not usual.dead_letters()


def test_an_offering_out_of_stock_is_remembered_and_another_used_at_once(usual):
    """The dearest lesson of a launch is kept in the OfferingState, for every later run to avoid."""
    cheaper, dearer = "c5.xlarge", "m5.xlarge"
    usual.pool("default", (INSTANCE_TYPE, cheaper, dearer), ("karpenter.sh/capacity-type", "on-demand"))
    for zone in usual.zones:
        usual.aws.out_of_stock(cheaper, zone, "on-demand", usual.clock.now() + timedelta(hours=1))
    usual.deploy("web", 3)

    waited = usual.until_running("web", 3)

    assert waited <= 75
    (node,) = usual.server.list(NODE).items
    assert node.metadata.labels[INSTANCE_TYPE] == dearer
    (state,) = usual.server.list(OFFERING_STATE).items
    avoided = state["status"]["unavailable"]
    assert {o["instanceType"] for o in avoided} == {cheaper}
    assert not usual.lines("error")


def test_pods_wait_with_a_reason_while_everything_is_out_of_stock_and_run_when_it_is_not(usual):
    """The pod is told that offerings are missing; no instance and no claim is left meanwhile; stock ends the wait."""
    types = ["m5.large", "c5.large"]
    usual.pool("default", (INSTANCE_TYPE, *types))
    until = usual.clock.now() + timedelta(minutes=4)
    for name in types:
        for zone in usual.zones:
            for capacity_type in ("spot", "on-demand"):
                usual.aws.out_of_stock(name, zone, capacity_type, until)
    usual.deploy("web", 1)

    usual.run(minutes=3)
    told = usual.events("FailedScheduling", "web")
    assert usual.running("web") == 0
    assert not usual.deployment.leftovers()
    usual.run(minutes=1)
    waited = usual.until_running("web", 1, minutes=6)

    assert "unavailable" in told[0]
    assert waited <= 300
    assert not usual.dead_letters()


@pytest.mark.parametrize("sample", ["ec2-spot-interruption/terminate", "ec2-state-change/terminated"])
def test_news_of_an_instance_that_is_not_ours_is_taken_note_of_and_nothing_else(usual, sample):
    """Acknowledged, counted, no error, and nothing written but the explanation."""
    usual.deploy("web", 1)
    usual.until_running("web", 1)
    usual.run(minutes=1)
    writes: list = []
    usual.server.on_write(lambda write: writes.append(write) if write.user == ACTOR else None)
    event = json.loads((ROOT / "events" / "eventbridge" / f"{sample}.json").read_text())

    before = len(usual.invocations("Interrupt"))
    usual.send(event, lane="Interrupt")
    usual.world.settle()

    (invocation,) = usual.invocations("Interrupt")[before:]
    assert invocation.outcome is Outcome.SUCCEEDED
    assert invocation.response == {"batchItemFailures": []}
    assert not writes
    assert not usual.lines()
    assert "not ours" in json.dumps(usual.lines("info", "debug", controller="interrupt"))
    assert usual.running("web") == 1


def test_selectors_that_match_nothing_are_told_everywhere_and_mending_them_is_enough(stage):
    """NodeClass, NodePool and pods say why; once the NodeClass is right the sweep finds out by itself."""
    stage.node_class(subnets="nowhere")
    stage.pool()
    stage.deploy("web", 3)

    stage.run(minutes=3)

    lacking = stage.condition(EC2NODECLASS, "default", "SubnetsReady")
    assert (lacking["status"], lacking["reason"]) == ("False", "SubnetsNotFound")
    assert stage.condition(NODEPOOL, "default", "NodeClassReady")["status"] == "False"
    assert lacking["message"] in stage.condition(NODEPOOL, "default", "NodeClassReady")["message"]
    told = stage.events("FailedScheduling", "web")
    assert len(told) == 3
    assert f"EC2NodeClass default is not ready: SubnetsReady: {lacking['message']}" in told[0]
    assert not stage.claims()

    right = [{"tags": {"karpenter.sh/discovery": "demo"}}]
    stage.server.patch(EC2NODECLASS, "default", {"spec": {"subnetSelectorTerms": right}})
    waited = stage.until_running("web", 3)

    assert waited <= 120
    assert stage.condition(NODEPOOL, "default", "Ready")["status"] == "True"
    assert not stage.lines("error")


DEATHS = {
    "opening": (("before", "create NodeClaim"), ("before", "CreateFleet"), ("after", "CreateFleet")),
    "joining": (("after", "patch NodeClaim"), ("before", "patch Node"), ("after", "patch Node")),
    "telling": (("before", "SendMessageBatch"), ("after", "create Event"), ("before", "patch NodePool")),
    "leaving": (("after", "delete NodeClaim"), ("before", "TerminateInstances"), ("after", "TerminateInstances")),
}


@pytest.mark.parametrize("deaths", DEATHS.values(), ids=DEATHS)
def test_runs_that_die_in_the_middle_are_made_up_for(usual, deaths):
    """From nothing to running pods and back to nothing: one claim, one instance, nothing left, nobody wakes anything."""
    functions = usual.deployment.stack.functions
    before = {name: len(function.invocations) for name, function in functions.items()}
    usual.mortal.reset(*deaths)

    usual.deploy("web", 3)
    usual.until_running("web", 3, minutes=10)
    claims = usual.claims()
    usual.server.patch(DEPLOYMENT, "web", {"spec": {"replicas": 0}}, namespace="default")
    usual.until(lambda: not usual.claims() and not usual.deployment.leftovers(), "an empty cluster", minutes=20)

    ends = [run.outcome for name, function in functions.items() for run in function.invocations[before[name] :]]
    assert ends.count(Outcome.CRASHED) == len(deaths)
    assert [usual.instances_by_claim()[claim.metadata.name] for claim in claims] == [1]
    assert not usual.server.list(NODE).items
