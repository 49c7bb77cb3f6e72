"""infra/aws/cluster.yaml: each function has a role for a further cluster, with exactly the permissions it has for its own."""

import json
from pathlib import Path

import pytest

from journeyman.runtime.access_providers import GROUPS
from journeyman.runtime.environment import FIFO_QUEUE_STEPS, read_environment
from journeyman_simulator.sam_stack import read_template

ROOT = Path(__file__).parents[2]
FILE = ROOT / "infra" / "aws" / "cluster.yaml"
HOME, CLUSTER = read_template(ROOT / "template.yaml"), read_template(FILE)
RESOURCES = CLUSTER["Resources"]
SHARED = [n for n, r in HOME["Resources"].items() if r["Type"] == "AWS::IAM::ManagedPolicy" and n in RESOURCES]
FUNCTIONS = [n for n, r in HOME["Resources"].items() if r["Type"] == "AWS::Serverless::Function"]
STEPS = [name.removesuffix("Function") for name in FUNCTIONS]
RULES = [name for name, resource in HOME["Resources"].items() if resource["Type"] == "AWS::Events::Rule"]
RULES.remove("AlarmRule")  # an alarm is of the main stack's account and region, and pauses every cluster


@pytest.mark.parametrize("name", SHARED)
def test_roles_have_the_policies_of_their_functions(name):
    """The policies of both templates are equal, and so are the functions that have them."""
    there, here = RESOURCES[name]["Properties"], HOME["Resources"][name]["Properties"]
    functions = {f for f in FUNCTIONS if {"Ref": name} in HOME["Resources"][f]["Properties"]["Policies"]}
    assert there["PolicyDocument"] == here["PolicyDocument"]
    assert {role["Ref"].removesuffix("Role") + "Function" for role in there["Roles"]} == functions


def test_roles_have_no_other_policies_but_the_right_to_describe_the_cluster():
    """They have no AWS managed policy either; queues are the main stack's."""
    attached = {name for name, resource in RESOURCES.items() if resource["Type"] == "AWS::IAM::ManagedPolicy"}
    (describing,) = RESOURCES["KubernetesPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert attached == {*SHARED, "KubernetesPolicy"}
    assert describing in HOME["Resources"]["FunctionPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    for step in STEPS:
        assert not {"Policies", "ManagedPolicyArns"} & set(RESOURCES[f"{step}Role"]["Properties"])


@pytest.mark.parametrize("step", STEPS)
def test_only_the_function_itself_may_assume_its_role(step):
    """It needs the external id, if the parameter is set."""
    (statement,) = RESOURCES[f"{step}Role"]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    condition, with_id, without = statement["Condition"]["Fn::If"]
    arns = HOME["Outputs"]["FunctionRoleArns"]["Value"]["Fn::Join"][1]
    index, given = statement["Principal"]["AWS"]["Fn::Select"]

    assert (arns[index], given) == ({"Fn::GetAtt": f"{step}FunctionRole.Arn"}, {"Ref": "FunctionRoleArns"})
    assert CLUSTER["Conditions"][condition] == {"Fn::Not": [{"Fn::Equals": [{"Ref": "ExternalId"}, ""]}]}
    assert (with_id, without) == ({"StringEquals": {"sts:ExternalId": {"Ref": "ExternalId"}}}, {"Ref": "AWS::NoValue"})


@pytest.mark.parametrize("step", STEPS)
def test_each_role_is_in_the_group_of_its_step_only(step):
    """The chart binds the group to what the step needs (`test_rights`)."""
    entry = RESOURCES[f"{step}Access"]["Properties"]
    assert entry["PrincipalArn"] == {"Fn::GetAtt": f"{step}Role.Arn"}
    assert entry["KubernetesGroups"] == [f"journeyman-{step.lower()}"]
    assert set(entry["KubernetesGroups"]) <= set(GROUPS)


@pytest.mark.parametrize("step", STEPS)
def test_functions_derive_the_names_of_their_roles(step):
    """The output has an asterisk in place of the function's name, which its process replaces."""
    arn = CLUSTER["Outputs"]["RoleArn"]["Value"]["Fn::Sub"].replace("${RolePrefix}", "emea")
    arn = arn.replace("${AWS::Partition}", "aws").replace("${AWS::AccountId}", "111122223333")
    emea = {"name": "emea", "region": "eu-west-1", "access": {"kind": "eks", "roleArn": arn}}
    variables = {
        "JOURNEYMAN_CLUSTERS": json.dumps([emea]),
        "_HANDLER": HOME["Resources"][f"{step}Function"]["Properties"]["Handler"],
        "JOURNEYMAN_REQUEUE_QUEUE_URL": "https://sqs/requeue",
        **{f"JOURNEYMAN_{queue.name}_QUEUE_URL": "https://sqs/queue" for queue in FIFO_QUEUE_STEPS},
    }
    role = RESOURCES[f"{step}Role"]["Properties"]
    name = role["Path"] + role["RoleName"]["Fn::Sub"].replace("${RolePrefix}", "emea")

    assert read_environment(variables).clusters["emea"].access.role_arn == f"arn:aws:iam::111122223333:role{name}"


@pytest.mark.parametrize("name", RULES)
def test_rules_forward_the_same_events_to_the_main_stack(name):
    """The main stack's rules match events of every account on its bus."""
    rule, letters = RESOURCES[name], RESOURCES["EventDeadLettersPolicy"]["Properties"]["PolicyDocument"]["Statement"]

    assert rule["Properties"]["EventPattern"] == HOME["Resources"][name]["Properties"]["EventPattern"]
    assert rule["Condition"] == RESOURCES["EventsRole"]["Condition"] == "IsElsewhere"
    (target,) = rule["Properties"]["Targets"]
    assert target["Arn"] == {"Ref": "EventBusArn"}
    assert target["DeadLetterConfig"]["Arn"]["Fn::GetAtt"] == "EventDeadLetters.Arn"
    (allow,) = (statement for statement in letters if statement["Effect"] == "Allow")
    assert {"Fn::GetAtt": f"{name}.Arn"} in allow["Condition"]["ArnEquals"]["aws:SourceArn"]


def test_only_named_accounts_may_send_events():
    """They get no other permission."""
    policy = HOME["Resources"]["ClusterEventsPolicy"]
    statement = policy["Properties"]["Statement"]
    assert "ClusterAccounts" in str(HOME["Conditions"][policy["Condition"]])
    assert (statement["Principal"], statement["Action"]) == ({"AWS": {"Ref": "ClusterAccounts"}}, "events:PutEvents")
