"""The functions' RAM roles allow exactly the calls that the functions make to Alibaba Cloud.

The account evaluates the policies of infra/alibaba for each call of a function (`ram_policies`). Every function is a process of
its own, as on Function Compute: it shares no cache with the others. One cluster has ECSNodeClasses of either API group.
"""

import json
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

import pytest

from journeyman.cloud.alibaba.smq_queue import SmqMessage
from journeyman.core.api.ecs_settings import ACS_API, ECS_API
from journeyman.core.plan import Step
from journeyman.runtime.alibaba import AlibabaAdapters, read_alibaba_environment
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman_simulator.alibaba_account import AlibabaAccount
from journeyman_simulator.alibaba_account.fc_stack import FcDescription, FcStack, read_description
from journeyman_simulator.alibaba_account.local_alibaba import LocalAlibabaDeployment
from journeyman_simulator.alibaba_account.smq import SimulatedSmq
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.cloud_rules.policy_statements import NeededRight, allowing_statement, granted_rights
from journeyman_simulator.cloud_rules.ram_policies import needed_rights
from journeyman_simulator.lambda_functions import InvocationOutcome
from tests.infra.rights_scenario import RightsScenario, Unmeasured

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "events" / "alibaba"
START = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)  # the time of the samples
FUNCTIONS = (*(step.value for step in Step), "api", "events")
NODE_ROLE = "KarpenterNodeRole-demo"
SELECTED = {"tags": {"karpenter.sh/discovery": "demo"}}
COMMON = {"vSwitchSelectorTerms": [SELECTED], "securityGroupSelectorTerms": [SELECTED]}
UNOBSERVED = {
    "cs:DescribeClusterUserKubeconfig": "the API server is in memory: tests/unit/kube/test_cloud_certificates.py",
    "ecs:ListTagResources": "it needs a thousand instances: tests/unit/cloud/alibaba/test_ecs_instances.py",
}
UNOBSERVED_OF = {
    "events": {"mns:SendMessage": "a forwarder's token: tests/unit/runtime/test_receiver.py"},
    "consolidate": {"ram:PassRole": "a replacement is launched like a node of provision", "ecs:RunInstances": "same"},
}


class _Adapters(Unmeasured, AlibabaAdapters):
    """The adapters of Function Compute, without metrics."""


class Scenario(RightsScenario):
    """Runs the deployment with the ECSNodeClasses of one API group."""

    def new_runtime(self):
        stack, account = self.deployment.stack, self.deployment.account
        adapters = _Adapters(
            read_environment(stack.variables, has_sqs=False),
            read_alibaba_environment(stack.variables),
            clock=self.deployment.clock,
            stores=lambda _: self.store(),
            open_api=lambda _region: account.open_api(),
            smq=stack.smq_client(),
        )
        return Runtime(adapters.clusters.settings, adapters)


def fail_messages(scenario):
    """Send each queue a message that can never succeed, and one that fails until the cluster answers."""
    stack, now = scenario.deployment.stack, scenario.deployment.clock.now().isoformat()
    interruption = (SAMPLES / "ecs" / "preemption.json").read_text()
    for step in Step:
        again = json.dumps(
            {"version": "1", "source": "requeue", "id": step.value, "time": now, "cluster": "demo", "step": step.value}
        )
        body = interruption if step is Step.INTERRUPT else again
        stack.smq_client().send(f"journeyman-{step.value}", [SmqMessage("not JSON"), SmqMessage(body)])
    scenario.is_down = True
    scenario.run(seconds=20)
    scenario.is_down = False
    scenario.run(minutes=1)


def call_api(scenario):
    for name, sample, statuses in (
        ("api", "get-plan", {200}),
        ("api", "post-requeue", {202}),
        ("events", "post-event", {401}),
    ):
        event = json.loads((SAMPLES / "http" / f"{sample}.json").read_text())
        invocation = scenario.deployment.stack.functions[name].invoke(event)
        assert invocation.outcome is InvocationOutcome.SUCCEEDED, invocation.error
        assert invocation.response["statusCode"] in statuses, invocation.response


def disrupt_nodes(scenario):
    """Interrupt a Spot instance, then scale down, and let consolidation replace a node."""
    (claim, *_) = scenario.claims()
    scenario.deployment.interrupt(claim.status.provider_id)
    scenario.run(minutes=7)
    scenario.replace_node(ECS_API.resource)


def run_first_group(scenario):
    """Auto-provisioning groups, Spot and on demand."""
    fail_messages(scenario)
    network = scenario.deployment.account.network  # a launch chooses between two vSwitches of a zone
    network.add_vswitch(next(iter(network.vswitches.values())).zone, "10.0.240.0/20").tags.update(SELECTED["tags"])
    scenario.node_class(ECS_API.resource, {**COMMON, "imageSelectorTerms": [{"alias": "ContainerOS@latest"}]})
    scenario.pool("spot", ECS_API.resource, "spot")
    scenario.deploy("web", 2, "1", "spot")
    scenario.restart()
    call_api(scenario)
    disrupt_nodes(scenario)
    scenario.remove_everything()


def run_second_group(scenario):
    """RunInstances with a RAM role and an image by its id."""
    image = next(iter(scenario.deployment.account.images.known))
    scenario.node_class(
        ACS_API.resource,
        {
            **COMMON,
            "imageSelectorTerms": [{"id": image}],
            "role": NODE_ROLE,
            "metadataOptions": {"httpTokens": "required"},
        },
    )
    scenario.pool("vendor", ACS_API.resource, "on-demand")
    scenario.deploy("web", 1, "1", "vendor")
    scenario.remove_everything()


@pytest.fixture(scope="module")
def rights():
    """Run both scenarios; return the rights that were used and those that were denied, by function, and the roles."""
    used, denied, roles = {}, [], {}
    for api, run in ((ECS_API, run_first_group), (ACS_API, run_second_group)):
        settings = {"JOURNEYMAN_NODE_CLASS_GROUP": api.resource.group, "JOURNEYMAN_NODE_ROLE_NAMES": NODE_ROLE}
        with ExitStack() as stack:
            deployment = stack.enter_context(LocalAlibabaDeployment(start=START, settings=settings))
            run(Scenario(deployment))
            permissions = deployment.account.permissions
            denied += permissions.denied
            for name in FUNCTIONS:
                function = deployment.stack.functions[name].name
                used.setdefault(name, set()).update(permissions.used.get(function, ()))
                roles[name] = deployment.stack.role_of(name)
    return used, denied, roles


@pytest.mark.slow
def test_no_call_of_a_function_is_denied(rights):
    """Each call of the scenarios is allowed by the function's role."""
    _, denied, _ = rights
    assert sorted(set(denied)) == []


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_right_of_a_function_is_used(rights, function):
    """A right that the scenarios do not need is not granted, except those that no call of the function shows."""
    used, _, roles = rights
    unused = granted_rights(roles[function]) - used[function]
    expected = {*UNOBSERVED, *UNOBSERVED_OF.get(function, ())}
    assert sorted(str(right) for right in unused if right.action not in expected) == []


# --- the policies by themselves


TAGS = {
    "i-own": {"ecs:ecs-cluster-id": "c1", "karpenter.sh/nodepool": "default"},
    "i-bare": {"ecs:ecs-cluster-id": "c1"},
    "i-foreign": {"ecs:ecs-cluster-id": "c9", "karpenter.sh/nodepool": "default"},
    "i-untagged": {},
}


class _Account:
    """An account with instances of the cluster, of another one, and without tags."""

    region, account = "cn-hangzhou", "1000000000000001"

    def tags_of(self, instance_id):
        return TAGS.get(instance_id)


def fc_stack(description=None, **settings):
    given = {"JOURNEYMAN_CLUSTER_NAME": "demo", "JOURNEYMAN_CLUSTER_ID": "c1", "JOURNEYMAN_NODE_ROLE_NAMES": NODE_ROLE}
    clock = VirtualClock(START)
    account = AlibabaAccount(clock, types=["ecs.g7.large"])
    return FcStack(account, SimulatedSmq(clock), description or read_description(), {**given, **settings})


def is_allowed(stack, function, action, parameters):
    rights = needed_rights(action, parameters, _Account())
    return all(allowing_statement(stack.role_of(function), right) for right in rights)


CLUSTER_TAGS = [{"Key": key, "Value": value} for key, value in TAGS["i-own"].items()]
FOREIGN_TAGS = [{"Key": key, "Value": value} for key, value in TAGS["i-foreign"].items()]


CASES = [
    ("terminate", "ecs:DeleteInstances", {"InstanceId": ["i-own"]}, True),
    ("terminate", "ecs:DeleteInstances", {"InstanceId": ["i-own", "i-foreign"]}, False),
    ("terminate", "ecs:DeleteInstances", {"InstanceId": ["i-bare"]}, False),
    ("terminate", "ecs:DeleteInstances", {"InstanceId": ["i-untagged"]}, False),
    ("provision", "ecs:DeleteInstances", {"InstanceId": ["i-own"]}, False),
    ("provision", "ecs:RunInstances", {"Tag": CLUSTER_TAGS}, True),
    ("provision", "ecs:RunInstances", {"Tag": FOREIGN_TAGS}, False),
    ("provision", "ecs:RunInstances", {}, False),
    ("provision", "ecs:RunInstances", {"Tag": CLUSTER_TAGS, "RamRoleName": NODE_ROLE}, True),
    ("provision", "ecs:RunInstances", {"Tag": CLUSTER_TAGS, "RamRoleName": "admin"}, False),
    ("provision", "ecs:CreateAutoProvisioningGroup", {}, True),
    ("provision", "ecs:CreateAutoProvisioningGroup", {"LaunchConfiguration": {"RamRoleName": "admin"}}, False),
    ("provision", "ram:GetRole", {"RoleName": NODE_ROLE}, True),
    ("provision", "ram:GetRole", {"RoleName": "admin"}, False),
    ("provision", "cs:DescribeClusterDetail", {"ClusterId": "c9"}, False),
    ("provision", "cs:DescribeClusterAttachScripts", {"ClusterId": "c1"}, True),
    ("provision", "cs:DescribeClusterAttachScripts", {"ClusterId": "c9"}, False),
    ("sweep", "cs:DescribeClusterUserKubeconfig", {"ClusterId": "c1"}, True),
    ("sweep", "cs:DescribeClusterUserKubeconfig", {"ClusterId": "c9"}, False),
    ("sweep", "ecs:DescribeInstances", {}, False),
    ("events", "ecs:DescribeInstances", {}, False),
    ("api", "ecs:CreateAutoProvisioningGroup", {}, False),
    ("interrupt", "ecs:DeleteInstances", {"InstanceId": ["i-own"]}, False),
    ("sweep", "mns:SendMessage", {"QueueName": "journeyman-provision"}, True),
    ("sweep", "mns:SendMessage", {"QueueName": "payments"}, False),
    ("provision", "mns:ReceiveMessage", {"QueueName": "journeyman-provision"}, False),
]
"""Whether a function's role allows a call."""


@pytest.mark.parametrize(("function", "action", "parameters", "expected"), CASES)
def test_role_allows_only_what_belongs_to_the_clusters(function, action, parameters, expected):
    """Instances by their tags, clusters and queues by their names, and only the configured node roles."""
    assert is_allowed(fc_stack(), function, action, parameters) is expected


def test_further_clusters_are_in_the_policies():
    """The comma-separated ids become one resource and one tag value each."""
    stack = fc_stack(JOURNEYMAN_MORE_CLUSTER_IDS="c8,c9")
    assert is_allowed(stack, "terminate", "ecs:DeleteInstances", {"InstanceId": ["i-own", "i-foreign"]})
    assert is_allowed(stack, "provision", "cs:DescribeClusterAttachScripts", {"ClusterId": "c8"})


def test_without_node_roles_no_role_may_be_passed():
    """The statements about roles are left out."""
    actions = {action for s in fc_stack(JOURNEYMAN_NODE_ROLE_NAMES="").role_of("provision") for action in s.actions}
    assert not {action for action in actions if action in {"ram:PassRole", "ram:GetRole"}}


READING = ("api", "interrupt", "sweep", "events")
WRITING = ("Run", "Create", "Delete", "Tag", "Untag", "Modify", "PassRole")


@pytest.mark.parametrize("function", READING)
def test_functions_without_writes_have_no_right_to_change_instances(function):
    """Their only write is a message."""
    actions = {action for statement in fc_stack().role_of(function) for action in statement.actions}
    assert not [action for action in actions if action.partition(":")[2].startswith(WRITING)]


def actions_of(description):
    """Yield (policy, statement, action) of each action in the template."""
    for name, resource in description.template["Resources"].items():
        if resource["Type"] == "ALIYUN::RAM::ManagedPolicy":
            statements = resource["Properties"]["PolicyDocument"]["Statement"]
            for number, statement in enumerate(statements):
                body = statement["Fn::If"][1] if "Fn::If" in statement else statement
                yield from ((name, number, action) for action in body["Action"])


def mutated(description, policy, number, change):
    """Return a copy of the description with one statement changed."""
    template = json.loads(json.dumps(description.template))  # without the anchors, which statements share
    statement = template["Resources"][policy]["Properties"]["PolicyDocument"]["Statement"][number]
    change(statement["Fn::If"][1] if "Fn::If" in statement else statement)
    return FcDescription(serverless=description.serverless, template=template)


def without(action):
    def change(statement):
        statement["Action"] = [each for each in statement["Action"] if each != action]

    return change


def widen(statement):
    statement["Resource"] = "*"
    statement.pop("Condition", None)


def narrow_statements(description):
    """Yield (policy, statement) of each statement that is about some resources of a kind only."""
    for policy, number, _ in actions_of(description):
        statement = description.template["Resources"][policy]["Properties"]["PolicyDocument"]["Statement"][number]
        body = statement["Fn::If"][1] if "Fn::If" in statement else statement
        is_kind = all(isinstance(r, dict) and r.get("Fn::Sub", "").endswith("/*") for r in body["Resource"])
        if (body["Resource"] != "*" and not is_kind) or (
            "Condition" in body and "ram:CreateServiceLinkedRole" not in body["Action"]
        ):
            yield policy, number


@pytest.mark.parametrize(("policy", "number"), sorted(set(narrow_statements(read_description()))))
def test_each_widened_statement_is_caught(policy, number):
    """A statement on every resource, without its conditions, allows a call that must not be."""
    stack = fc_stack(mutated(read_description(), policy, number, widen))
    assert [case for case in CASES if is_allowed(stack, *case[:3]) is not case[3]]


def test_only_the_service_linked_role_of_auto_provisioning_can_be_created():
    """RAM's condition names the service."""
    context = {"ram:ServiceName": ("eci.aliyuncs.com",)}
    right = NeededRight(
        action="ram:CreateServiceLinkedRole", resource="acs:ram::1000000000000001:role/x", context=context
    )
    assert allowing_statement(fc_stack().role_of("provision"), right) is None


OBSERVED = [each for each in actions_of(read_description()) if each[2] not in UNOBSERVED]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "number", "action"), OBSERVED)
def test_each_action_of_a_policy_is_missed_when_it_is_removed(rights, policy, number, action):
    """Otherwise the scenarios would not notice a right that the deployment lacks."""
    used, _, _ = rights
    stack = fc_stack(mutated(read_description(), policy, number, without(action)))
    missing = {
        (name, right.action)
        for name in FUNCTIONS
        for right in used[name]
        if right.action == action and not any(action in s.actions for s in stack.role_of(name))
    }

    assert missing


MOST_POLICIES, MOST_CHARACTERS = 5, 2048  # RAM's lowest published quotas
TEN = [f"c{number}{'0' * 31}" for number in range(10)]


def test_policies_are_within_rams_quotas_with_ten_clusters():
    """Custom policies of a role, and characters of a policy."""
    stack = fc_stack(JOURNEYMAN_CLUSTER_ID=TEN[0], JOURNEYMAN_MORE_CLUSTER_IDS=",".join(TEN[1:]))

    assert all(len(role["PolicyAttachments"]["Custom"]) <= MOST_POLICIES for role in stack.ros.roles.values())
    lengths = {
        name: len(json.dumps(policy["PolicyDocument"], separators=(",", ":")))
        for name, policy in stack.ros.policies.items()
    }
    assert max(lengths.values()) <= MOST_CHARACTERS, lengths
