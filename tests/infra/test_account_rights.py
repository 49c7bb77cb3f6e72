"""The functions' roles allow exactly the calls that the functions make to AWS.

The account evaluates the template's policies for each call of a function (`iam_policies`). Every function is a process of its
own, as on Lambda: it shares no cache with the others.
"""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from journeyman.core.api.objects import EC2NODECLASS, NODEPOOL
from journeyman.errors import KubeUnavailableError
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman_simulator.cloud_rules.policy_statements import granted_rights
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.local_aws import LocalAwsDeployment
from journeyman_simulator.local_deployment import ACTOR
from journeyman_simulator.sam_stack import SamStack, read_template
from journeyman_simulator.simulator_cli.demo_command import CLOUDS
from journeyman_simulator.workload_controllers import DEPLOYMENT
from tests.helpers.deployed_application import FEW_FAMILIES, DeployedApplication, SandboxCrashes
from tests.infra.rights_scenario import OwnProcess, Unmeasured

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "events"
HOME, CLUSTER = read_template(ROOT / "template.yaml"), read_template(ROOT / "infra" / "aws" / "cluster.yaml")
POLICY = "AWS::IAM::ManagedPolicy"
CUSTOM_PARAMETER = "/images/nodes"
PARAMETERS = {
    "SsmParameterArns": f"arn:aws:ssm:us-east-1:123456789012:parameter{CUSTOM_PARAMETER}",
    "KmsKeyArns": "arn:aws:kms:us-east-1:123456789012:key/nodes",
    "ClusterRoleArns": "arn:aws:iam::111122223333:role/journeyman-emea",
}
QUEUES = {"ProvisionFunction": "Provision", "TerminateFunction": "Terminate", "ConsolidateFunction": "Consolidate"}
QUEUES |= {"InterruptFunction": "Interrupt", "SweepFunction": "Requeue"}
UNOBSERVED = {
    "sts:AssumeRole": "botocore assumes the role inside its credentials: tests/contract/test_reaching_clusters.py",
    "sts:DecodeAuthorizationMessage": "moto encodes no refusal: tests/unit/cloud/aws/test_authorization_messages.py",
    "sqs:ReceiveMessage": "Lambda polls the queue with the function's role",
    "sqs:DeleteMessage": "as above",
    "sqs:DeleteMessageBatch": "no action of its own, but part of SAM's SQSPollerPolicy",
    "sqs:ChangeMessageVisibilityBatch": "as above",
    "kms:CreateGrant": "EC2 uses the keys with the role of the launch",
    "kms:Decrypt": "as above",
    "kms:DescribeKey": "as above",
    "kms:GenerateDataKeyWithoutPlaintext": "as above",
    "kms:ReEncryptFrom": "as above",
    "kms:ReEncryptTo": "as above",
}


class Outage:
    """Whether the API server cannot be reached."""

    is_on = False

    def begins(self):
        self.is_on = True

    def ends(self):
        self.is_on = False

    def store_or_error(self, store):
        """Return the store. Raises KubeUnavailableError during the outage."""
        if self.is_on:
            raise KubeUnavailableError("no route to host")
        return store


class _Adapters(Unmeasured, AwsAdapters):
    """The adapters of Lambda, without metrics."""


@pytest.fixture(scope="module")
def account():
    """Run the scenario, and return the account's permissions with the roles."""
    logs = []
    with ExitStack() as stack:
        deployment = stack.enter_context(
            LocalAwsDeployment(
                start=CLOUDS["aws"].start, parameters=PARAMETERS, families=FEW_FAMILIES, on_log=logs.append
            )
        )
        application = DeployedApplication(deployment, logs, SandboxCrashes())
        processes, outage = {}, Outage()
        for name, function in deployment.stack.functions.items():
            processes[name] = function.handler = OwnProcess(function.handler, lambda: runtime_of(deployment, outage))
        run_scenario(application, processes, outage)
        roles = {name: deployment.stack.role_of(name) for name in deployment.stack.functions}
        yield deployment.aws.permissions, roles


def runtime_of(deployment, outage):
    """Return a runtime with the variables of the template: an EKS cluster that EKS describes."""
    environment = read_environment(deployment.stack.variables)
    adapters = _Adapters(
        environment,
        clock=deployment.clock,
        stores=lambda _: outage.store_or_error(deployment.server.acting_as(ACTOR)),
        clients=lambda service, _region: deployment.aws.client(service),
    )
    return Runtime(adapters.clusters.settings, adapters)


def run_scenario(application, processes, outage):
    fail_messages(application, outage)
    launch_nodes(application)
    resolve_other_node_classes(application)
    for process in processes.values():
        process.restart()  # a new process reads everything again
    call_api(application)
    disrupt_nodes(application)
    remove_everything(application)


def fail_messages(application, outage):
    """Send each queue a message that can never succeed, and one that fails until the cluster answers."""
    now = application.clock.now().isoformat()
    for function, queue in QUEUES.items():
        application.send("not JSON", queue=queue)
        step = function.removesuffix("Function").lower()
        application.send(
            {"version": "1", "source": "requeue", "id": queue, "time": now, "cluster": "demo", "step": step}
            if step != "interrupt"
            else json.loads((SAMPLES / "eventbridge" / "ec2-spot-interruption" / "terminate.json").read_text()),
            queue=queue,
        )
    outage.begins()
    application.run(seconds=20)
    outage.ends()
    application.run(minutes=1)


def launch_nodes(application):
    add_subnet(application)
    application.node_class()
    application.pool("spot", ("karpenter.sh/capacity-type", "spot"))
    application.deploy("web", 4, cpu="1")
    application.until_running("web", 4, minutes=6)


def add_subnet(application):
    """Give a zone a second subnet, so that a launch chooses one."""
    (first, *_) = application.ec2.describe_subnets()["Subnets"]
    tags = [{"ResourceType": "subnet", "Tags": [{"Key": "karpenter.sh/discovery", "Value": "demo"}]}]
    application.ec2.create_subnet(
        VpcId=first["VpcId"],
        CidrBlock="172.31.240.0/24",
        AvailabilityZone=first["AvailabilityZone"],
        TagSpecifications=tags,
    )


def resolve_other_node_classes(application):
    """Another NodeClass has a custom image parameter, a placement group and a capacity reservation."""
    image = application.ec2.describe_images()["Images"][0]["ImageId"]
    application.aws.client("ssm").put_parameter(Name=CUSTOM_PARAMETER, Value=image, Type="String")
    spec = {
        **application.server.get(EC2NODECLASS, "default")["spec"],
        "amiFamily": "AL2023",
        "amiSelectorTerms": [{"ssmParameter": CUSTOM_PARAMETER}],
        "placementGroupSelector": {"name": "together"},
        "capacityReservationSelectorTerms": [{"id": "cr-0123456789abcdef0"}],
    }
    template = json.loads(json.dumps(application.server.get(NODEPOOL, "spot")["spec"]["template"]))
    template["spec"]["nodeClassRef"]["name"] = "other"
    other = {"metadata": {"name": "other"}}
    application.server.load(
        [
            {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", **other, "spec": spec},
            {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", **other, "spec": {"template": template}},
        ]
    )
    application.run(minutes=2)
    reservation = {"id": "cr-0123456789abcdef0", "instanceType": "m5.large", "availabilityZone": application.zones[0]}
    reservation |= {"ownerID": "123456789012", "instanceMatchCriteria": "open", "reservationType": "default"}
    status = {"capacityReservations": [{**reservation, "interruptible": False, "state": "active"}]}
    application.server.patch(EC2NODECLASS, "default", {"status": status}, subresource="status")


def disrupt_nodes(application):
    """Interrupt a Spot instance, then scale down, and let consolidation replace a node."""
    (claim, *_) = application.claims()
    application.aws.interrupt(claim.status.provider_id.rpartition("/")[2])
    application.run(minutes=4)
    application.until_running("web", 4, minutes=8)
    replace = {
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "0s",
        "budgets": [{"nodes": "100%"}, {"nodes": "100%", "schedule": "@daily", "duration": "1h"}],
    }
    application.pool("steady", ("karpenter.sh/capacity-type", "on-demand"), disruption=replace)
    on_steady = {"nodeSelector": {"karpenter.sh/nodepool": "steady"}}
    application.deploy("large", 1, cpu="14", **on_steady)
    application.deploy("small", 1, cpu="1", **on_steady)
    application.until_running("small", 1, minutes=8)
    replaced = claims_of(application, "steady")
    application.server.delete(DEPLOYMENT, "large", namespace="default")
    application.until(lambda: not replaced & claims_of(application, "steady"), "the replacement of a node", minutes=20)
    application.run(minutes=1)


def claims_of(application, pool):
    return {c.metadata.name for c in application.claims() if c.metadata.labels["karpenter.sh/nodepool"] == pool}


def call_api(application):
    function = application.deployment.stack.functions["ApiFunction"]
    for sample in ("get-plan", "post-requeue"):
        event = json.loads((SAMPLES / "api" / f"{sample}.json").read_text())
        invocation = function.invoke(event)
        assert invocation.outcome is InvocationOutcome.SUCCEEDED, invocation.error
        assert invocation.response["statusCode"] < 300, invocation.response


def remove_everything(application):
    application.server.delete(EC2NODECLASS, "other")
    for resource, namespace in ((DEPLOYMENT, "default"), (NODEPOOL, "")):
        for item in application.server.list(resource).items:
            application.server.delete(resource, item["metadata"]["name"], namespace=namespace)
    application.until(lambda: not application.claims(), "no NodeClaims", minutes=15)
    application.server.delete(EC2NODECLASS, "default")
    application.until(lambda: not application.server.list(EC2NODECLASS).items, "no NodeClasses", minutes=15)


FUNCTIONS = ("Provision", "Terminate", "Consolidate", "Interrupt", "Sweep", "Api")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_call_of_a_function_is_denied(account, function):
    """Each call of the scenario is allowed by the function's role."""
    permissions, _ = account
    assert permissions.used[f"{function}Function"]
    assert sorted({d for d in permissions.denied if d.startswith(f"{function}Function")}) == []


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_right_of_a_function_is_used(account, function):
    """A right that the scenario does not need is not granted, except those that no call of the function shows."""
    permissions, roles = account
    unused = granted_rights(roles[f"{function}Function"]) - permissions.used[f"{function}Function"]
    assert sorted(str(right) for right in unused if right.action not in UNOBSERVED) == []


MOST_MANAGED_POLICIES = 10
MOST_CHARACTERS = 6144
FREE_POLICIES = 2
OF_SAM = ("AWSLambdaBasicExecutionRole", "AWSXRayDaemonWriteAccess", "AWSLambdaVPCAccessExecutionRole")


def managed_policies(template, role):
    """Return the customer managed policies of a function's role, or of a role of infra/aws/cluster.yaml."""
    resources = template["Resources"]
    named = {p["Ref"] for p in resources.get(role, {}).get("Properties", {}).get("Policies", ()) if "Ref" in p}
    ref = {"Ref": f"{role}Role" if role.endswith("Function") else role}
    attached = {n for n, r in resources.items() if r["Type"] == POLICY and ref in r["Properties"].get("Roles", ())}
    return named | attached


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_role_has_room_for_two_more_managed_policies(function):
    """A role has ten managed policies at most; SAM attaches its own for logs, traces and the VPC."""
    here = managed_policies(HOME, f"{function}Function")
    assert "FunctionPolicy" in here
    assert len(here) + len(OF_SAM) <= MOST_MANAGED_POLICIES - FREE_POLICIES
    assert 0 < len(managed_policies(CLUSTER, f"{function}Role")) <= MOST_MANAGED_POLICIES - FREE_POLICIES


LONGEST = {
    "ClusterName": "c" * 100,
    "NodeRoleArn": ",".join(f"arn:aws:iam::123456789012:role/{'n' * 64}" for _ in range(5)),
    "SsmParameterArns": ",".join(f"arn:aws:ssm:ap-southeast-1:123456789012:parameter/{'p' * 60}" for _ in range(5)),
    "KmsKeyArns": ",".join(f"arn:aws:kms:ap-southeast-1:123456789012:key/{'k' * 36}" for _ in range(5)),
    "ClusterRoleArns": ",".join(f"arn:aws:iam::123456789012:role/{'r' * 64}" for _ in range(20)),
}


@pytest.mark.parametrize(
    "name", [n for n, r in HOME["Resources"].items() if r["Type"] == POLICY and n != "ForwarderPolicy"]
)
def test_policies_are_within_iams_size(name):
    """IAM counts the characters without white space; with long names, five roles and keys, and twenty further clusters."""
    stack = SamStack(_Account(), HOME, LONGEST)
    assert len(json.dumps(stack.policy_document(name), separators=(",", ":"))) <= MOST_CHARACTERS


class _Account:
    """An account with long names, whose queues have a URL."""

    region, account = "ap-southeast-1", "123456789012"

    def client(self, _service):
        return self

    def create_queue(self, **parameters):
        return {"QueueUrl": f"https://sqs.ap-southeast-1.amazonaws.com/123456789012/{parameters['QueueName']}"}

    def get_queue_attributes(self, **parameters):
        name = parameters["QueueUrl"].rpartition("/")[2]
        return {"Attributes": {"QueueArn": f"arn:aws:sqs:ap-southeast-1:123456789012:{name}"}}
