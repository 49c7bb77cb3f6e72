"""infra/aws/cluster.yaml: the role for a further cluster has exactly the functions' permissions."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from journeyman.runtime.access_providers import GROUPS
from journeyman_simulator.sam_stack import read_template

ROOT = Path(__file__).parents[2]
FILE = ROOT / "infra" / "aws" / "cluster.yaml"
HOME, CLUSTER = read_template(ROOT / "template.yaml"), read_template(FILE)
RESOURCES = CLUSTER["Resources"]
POLICIES = ("KubernetesPolicy", "CatalogueReadPolicy", "LaunchPolicy", "ReleasePolicy", "TerminatePolicy")
RULES = [name for name, resource in HOME["Resources"].items() if resource["Type"] == "AWS::Events::Rule"]


@pytest.mark.xdist_group("sam")
def test_cfn_lint_accepts_the_template():
    """`make sam` installs the linter with the SAM CLI."""
    command = os.environ.get("CFN_LINT") or str(ROOT / ".tools" / "sam" / "bin" / "cfn-lint")
    assert shutil.which(command), f"there is no cfn-lint at {command}: run `make sam`"
    done = subprocess.run([command, str(FILE)], text=True, capture_output=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", POLICIES)
def test_role_has_the_policies_of_the_functions(name):
    """The policies of both templates are equal."""
    there, here = RESOURCES[name]["Properties"], HOME["Resources"][name]["Properties"]

    assert there["PolicyDocument"] == here["PolicyDocument"]
    assert there["Roles"] == [{"Ref": "Role"}]


def test_role_has_no_other_policies():
    """It has no AWS managed policy either."""
    attached = [name for name, resource in RESOURCES.items() if resource["Type"] == "AWS::IAM::ManagedPolicy"]

    assert sorted(attached) == sorted(POLICIES)
    assert not {"Policies", "ManagedPolicyArns"} & set(RESOURCES["Role"]["Properties"])


def test_only_the_functions_may_assume_the_role():
    """They need the external id, if the parameter is set."""
    (statement,) = RESOURCES["Role"]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    condition, with_id, without = statement["Condition"]["Fn::If"]

    assert statement["Principal"] == {"AWS": {"Ref": "FunctionRoleArns"}}
    assert CLUSTER["Conditions"][condition] == {"Fn::Not": [{"Fn::Equals": [{"Ref": "ExternalId"}, ""]}]}
    assert (with_id, without) == (
        {"StringEquals": {"sts:ExternalId": {"Ref": "ExternalId"}}},
        {"Ref": "AWS::NoValue"},
    )
    named = {
        part["Fn::GetAtt"].removesuffix("Role.Arn")
        for part in HOME["Outputs"]["FunctionRoleArns"]["Value"]["Fn::Join"][1]
    }
    assert named == {name for name, r in HOME["Resources"].items() if r["Type"] == "AWS::Serverless::Function"}


def test_role_is_in_the_groups_of_all_steps():
    """All functions assume this role."""
    entry = RESOURCES["Access"]["Properties"]

    assert entry["PrincipalArn"] == {"Fn::GetAtt": "Role.Arn"}
    assert sorted(entry["KubernetesGroups"]) == sorted(GROUPS)


@pytest.mark.parametrize("name", RULES)
def test_rules_forward_the_same_events_to_the_main_stack(name):
    """The main stack's rules match events of every account on its bus."""
    rule = RESOURCES[name]

    assert rule["Properties"]["EventPattern"] == HOME["Resources"][name]["Properties"]["EventPattern"]
    assert rule["Condition"] == RESOURCES["EventsRole"]["Condition"] == "IsElsewhere"
    (target,) = rule["Properties"]["Targets"]
    assert (target["Arn"], target["DeadLetterConfig"]["Arn"]["Fn::GetAtt"]) == (
        {"Ref": "EventBusArn"},
        "EventDeadLetters.Arn",
    )
    (allow,) = (
        s
        for s in RESOURCES["EventDeadLettersPolicy"]["Properties"]["PolicyDocument"]["Statement"]
        if s["Effect"] == "Allow"
    )
    assert {"Fn::GetAtt": f"{name}.Arn"} in allow["Condition"]["ArnEquals"]["aws:SourceArn"]


def test_only_named_accounts_may_send_events():
    """They get no other permission."""
    policy = HOME["Resources"]["ClusterEventsPolicy"]
    statement = policy["Properties"]["Statement"]

    assert "ClusterAccounts" in str(HOME["Conditions"][policy["Condition"]])
    assert (statement["Principal"], statement["Action"]) == ({"AWS": {"Ref": "ClusterAccounts"}}, "events:PutEvents")
