"""The deployed application for tests that crash it, restart it without caches, and read its results.

Template, queues and handlers are the deployed ones, on the in-memory API server and moto, in virtual time.
"""

import functools
import json
from contextlib import contextmanager
from datetime import timedelta

from journeyman.core.api.objects import (
    EC2NODECLASS,
    EVENT,
    NODECLAIM,
    NODEPOOL,
    OFFERING_STATE,
    POD,
    Resource,
    condition_of,
)
from journeyman.runtime.composition import installed
from journeyman_simulator.apiserver.server import create_sequentially
from journeyman_simulator.local_aws import LocalAwsDeployment, local_runtime
from journeyman_simulator.local_deployment import ACTOR
from journeyman_simulator.workload_controllers import DEPLOYMENT

FEW_FAMILIES = ("c5", "c6g", "g4dn", "m5", "m6g", "r5", "t3")
"""Reading all instance types takes longer than most tests that deploy the application."""
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
RAW_EVENT: Resource = Resource(group="", version="v1", kind="Event", plural="events", namespaced=True, type=dict)


class SandboxCrashed(BaseException):
    """The sandbox's process ended during an invocation."""


class SandboxCrashes:
    """Crashes invocations just before or after a write to the cluster or the cloud; the next one gets a new sandbox."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, *deaths: tuple[str, str]) -> None:
        """Plan the crashes: each is (kind, "before" or "after") for the next effect of that kind, in order."""
        self.deaths, self.dead, self.doomed = list(deaths), False, False

    def effect(self, what: str) -> None:
        """Raise SandboxCrashed if a crash is due at this effect, and at every later effect of the crashed run."""
        if not self.dead and self.deaths:
            when, fatal = self.deaths[0]
            self.dead = self.doomed or (when, fatal) == ("before", what)
            self.doomed = (when, fatal) == ("after", what)
            if self.dead:
                del self.deaths[0]
        if self.dead:
            raise SandboxCrashed(what)

    def __call__(self, handler):
        """Return the handler with a new sandbox for each crashed one."""

        def invoke(event, context):
            self.dead = self.doomed = False
            return handler(event, context)

        return invoke


class CrashingStore:
    """The cluster's API server; its writes may crash the invocation."""

    def __init__(self, store, crashes: SandboxCrashes) -> None:
        self._store, self._crashes = store, crashes

    def __getattr__(self, verb):
        if verb == "create_each":
            return functools.partial(create_sequentially, self)
        call = getattr(self._store, verb)

        def guarded(*args, **kwargs):
            if verb in {"create", "patch", "delete", "evict"}:
                self._crashes.effect(f"{verb} {args[0].kind if isinstance(args[0], Resource) else 'Pod'}")
            return call(*args, **kwargs)

        return guarded


class CrashingAccount:
    """The AWS account; its writes may crash the invocation. boto3 does not retry, so that the code sees every failure."""

    def __init__(self, aws, crashes: SandboxCrashes) -> None:
        self._aws, self._crashes = aws, crashes

    def client(self, service: str):
        client = self._aws.client(service, max_attempts=1)
        client.meta.events.register("before-call", self._called, unique_id="crashes")
        return client

    def _called(self, model, **_):
        if not model.name.startswith(("Describe", "Get", "List")):
            self._crashes.effect(model.name)


class DeployedApplication:
    """The deployed application, with methods that create objects, run it and query its results."""

    def __init__(self, deployment: LocalAwsDeployment, logs: list, crashes: SandboxCrashes) -> None:
        self.deployment, self.logs, self.crashes = deployment, logs, crashes
        self.server, self.clock = deployment.server, deployment.clock
        self.aws, self.world = deployment.aws, deployment.world
        self.sqs, self.ec2 = self.aws.client("sqs"), self.aws.client("ec2")
        for function in deployment.stack.functions.values():
            function.handler, function.fatal = crashes(function.handler), (SandboxCrashed,)

    @contextmanager
    def cold(self):
        """Run the functions with empty caches inside the context; they see every failure of the cloud."""
        runtime = local_runtime(
            CrashingAccount(self.aws, self.crashes),
            self.deployment.stack.variables,
            cluster=self.deployment.cluster,
            endpoint="https://demo.example",
            store=CrashingStore(self.server.acting_as(ACTOR), self.crashes),
            clock=self.clock,
        )
        with installed(runtime):
            yield

    # -- cluster and account ------------------------------------------------------------------------------------------

    def node_class(self, subnets="demo"):
        selected = [{"tags": {"karpenter.sh/discovery": subnets}}]
        body = {
            "role": "KarpenterNodeRole-demo",
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "subnetSelectorTerms": selected,
            "securityGroupSelectorTerms": [{"tags": {"karpenter.sh/discovery": "demo"}}],
        }
        self._load("karpenter.k8s.aws/v1", "EC2NodeClass", "default", body)

    def pool(self, name="default", *requirements, disruption=None, **spec):
        wanted = [
            *({"key": k, "operator": "In", "values": list(values)} for k, *values in requirements),
            {"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m", "r"]},
        ]
        ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
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
        """Create a NodeClaim as a user does."""
        ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
        wanted = [{"key": INSTANCE_TYPE, "operator": "In", "values": [instance_type]}]
        body = {"metadata": {"name": name}, "spec": {"nodeClassRef": ref, "requirements": wanted}}
        self.server.create(NODECLAIM, {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", **body})

    @property
    def zones(self):
        """Return the zones of the account's subnets."""
        return sorted({s["AvailabilityZone"] for s in self.ec2.describe_subnets()["Subnets"]})

    # -- running the actors -------------------------------------------------------------------------------------------

    def send(self, body, queue="Provision"):
        body = body if isinstance(body, str) else json.dumps(body)
        url = self.deployment.stack.queue_urls[f"{queue}Queue"]
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

    # -- results ----------------------------------------------------------------------------------------

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

    def launch_reason(self):
        """Return (status, reason) of the first NodeClaim's condition Launched."""
        for claim in self.claims():
            launched = condition_of(claim.status.conditions, "Launched")
            return (launched.status, launched.reason) if launched else None
        return None

    def take_dead_letters(self):
        """Remove the messages from the provision queue's dead-letter queue and return their bodies."""
        url = self.deployment.stack.queue_urls["ProvisionDeadLetters"]
        received = self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        for message in received:
            self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return [message["Body"] for message in received]

    def instances_by_claim(self):
        """Return how many instances were ever launched for each NodeClaim."""
        counts: dict[str, int] = {}
        for page in self.ec2.get_paginator("describe_instances").paginate():
            for instance in (i for r in page["Reservations"] for i in r["Instances"]):
                tags = {t["Key"]: t["Value"] for t in instance["Tags"]}
                counts[tags["karpenter.sh/nodeclaim"]] = counts.get(tags["karpenter.sh/nodeclaim"], 0) + 1
        return counts

    def invocations(self, function):
        return self.deployment.stack.functions[f"{function}Function"].invocations

    # -- clean-up ------------------------------------------------------------------------------------------------

    def clear(self):
        """Delete all objects; fail if the application does not remove its own, or if a dead letter is left."""
        for resource in (DEPLOYMENT, NODEPOOL):
            for item in self.server.list(resource).items:
                meta = item["metadata"]
                self.server.delete(resource, meta["name"], namespace=meta.get("namespace", ""))
        for pod in self.server.list(POD).items:
            if not pod.metadata.owner_references:
                self.server.delete(POD, pod.metadata.name, namespace=pod.metadata.namespace, grace_period_seconds=0)
        self.until(lambda: not self.claims() and not self.deployment.leftovers(), "an empty cluster", minutes=15)
        for resource in (EC2NODECLASS, OFFERING_STATE):
            for item in self.server.list(resource).items:
                self.server.delete(resource, item["metadata"]["name"])
        for event in self.server.list(EVENT).items:
            self.server.delete(EVENT, event.metadata.name, namespace=event.metadata.namespace)
        self.logs.clear()
