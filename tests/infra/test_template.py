"""template.yaml: triggers, permissions, queues and dead-letter queues."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from journeyman.core.api.metrics import METRICS
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.core.scheduling.results import MinValuesPolicy, PreferencePolicy
from journeyman.events import parse_trigger
from journeyman.kube.clusters import EksAccess, KubeconfigAccess
from journeyman.observe.embedded_metrics import NAMESPACE
from journeyman.ports import Interruption
from journeyman.runtime.environment import FIFO_QUEUE_STEPS, read_environment
from journeyman_simulator.cloud_rules.iam_policies import needed_rights
from journeyman_simulator.cloud_rules.policy_statements import allowing_statement, read_statements
from journeyman_simulator.cloud_rules.trace_header import MAX_RUNS
from journeyman_simulator.sam_stack import SamStack, read_template
from tests.helpers.small_clusters import table

ROOT = Path(__file__).parents[2]
TEMPLATE = read_template(ROOT / "template.yaml")
RESOURCES = TEMPLATE["Resources"]
FUNCTIONS = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::Serverless::Function"}
QUEUES = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::SQS::Queue"}
WORKING_QUEUES = {name: q for name, q in QUEUES.items() if "DeadLetters" not in name}
RULES = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::Events::Rule"}
API = RESOURCES["JourneymanApi"]["Properties"]
ACCOUNT_LIMIT = 10
OWN, OTHER, FOREIGN = "123456789012", "111122223333", "999999999999"
MAPPINGS = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::Lambda::EventSourceMapping"}
TEN_MINUTES, SHORTEST_LONG_RETRY = 600, 22  # seconds; of `retry_seconds` from the fifth receive on
DAYS_14 = 14 * 24 * 3600
CUSTOM_PARAMETERS = "AllowSSMReadOfCustomParameters"


class Account:
    """An account with what a template's variables need: queues that have a URL."""

    region, account = "us-east-1", OWN

    def client(self, _service):
        return self

    def create_queue(self, **request):
        return {"QueueUrl": f"https://sqs.us-east-1.amazonaws.com/{OWN}/{request['QueueName']}"}

    def get_queue_attributes(self, **request):
        name = request["QueueUrl"].rpartition("/")[2]
        return {"Attributes": {"QueueArn": f"arn:aws:sqs:us-east-1:{OWN}:{name}"}}


def variables_of(**parameters):
    """Return the environment of the functions of a stack with these parameters."""
    return SamStack(Account(), TEMPLATE, {"ClusterName": "dev", **parameters}).variables


def of_type(kind: str) -> dict:
    return {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == kind}


def get_att(value: dict) -> str:
    """Return the resource of a `GetAtt`, also of one that depends on a condition."""
    value = value["Fn::If"][1] if "Fn::If" in value else value
    return value["Fn::GetAtt"].split(".")[0]


def listed(value) -> list:
    return value if isinstance(value, list) else [value]


def statements(policy: dict) -> Iterator[dict]:
    for statement in policy["PolicyDocument"]["Statement"]:
        yield statement["Fn::If"][1] if "Fn::If" in statement else statement


def actions_of(function: str) -> set[str]:
    """Every action a function's own policies allow (SAM's poller template aside)."""
    names = [p["Ref"] for p in FUNCTIONS[function]["Policies"] if "Ref" in p]
    return {a for name in names for s in statements(RESOURCES[name]["Properties"]) for a in listed(s["Action"])}


def test_every_step_and_the_api_has_a_function_with_its_handler():
    """The names are the same on every cloud."""
    assert set(FUNCTIONS) == {f"{step.name.title()}Function" for step in Step} | {"ApiFunction"}
    for function in FUNCTIONS.values():
        module, _, name = function["Handler"].partition(".")
        assert f"def {name}(" in (ROOT / "functions" / "aws" / f"{module}.py").read_text()


def test_scheduler_parameters_have_the_defaults_of_the_code():
    """By default, the scheduler follows Karpenter; the template allows only the policies of the code."""
    parameters = TEMPLATE["Parameters"]
    given = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]
    settings = ("PREFERENCE_POLICY", "MIN_VALUES_POLICY", "FEATURE_GATES", "IGNORE_DRA_REQUESTS", "SCHEDULER_CONFIG")
    defaults = {name: parameters[given[name]["Ref"]]["Default"] for name in settings}
    needed = {f"JOURNEYMAN_{queue.name}_QUEUE_URL": "https://sqs/queue" for queue in FIFO_QUEUE_STEPS} | {
        "JOURNEYMAN_CLUSTERS": '[{"name": "dev", "region": "eu-west-1"}]',
        "JOURNEYMAN_REQUEUE_QUEUE_URL": "https://sqs/wake",
    }

    assert read_environment(needed | defaults) == read_environment(needed)
    assert parameters["PreferencePolicy"]["AllowedValues"] == [policy.value for policy in PreferencePolicy]
    assert parameters["MinValuesPolicy"]["AllowedValues"] == [policy.value for policy in MinValuesPolicy]


@pytest.mark.parametrize(("architecture", "layer"), [("x86_64", "JourneymanLayer"), ("arm64", "JourneymanArmLayer")])
def test_functions_have_the_layer_of_their_architecture(architecture, layer):
    """Lambda refuses another one; the build makes both."""
    stack = SamStack(Account(), TEMPLATE, {"ClusterName": "dev", "Architecture": architecture})
    assert stack.layers == [layer]
    assert RESOURCES[layer]["Properties"]["CompatibleArchitectures"] == [architecture]
    assert TEMPLATE["Globals"]["Function"]["Architectures"] == [{"Ref": "Architecture"}]


def test_every_log_group_has_a_retention():
    """Log lines without a retention are never deleted."""
    groups = of_type("AWS::Logs::LogGroup")
    assert {f["LoggingConfig"]["LogGroup"]["Ref"] for f in FUNCTIONS.values()} == set(groups)
    assert all(group["RetentionInDays"] == {"Ref": "LogRetentionDays"} for group in groups.values())


def test_step_queues_are_fifo_and_their_visibility_outlasts_the_function():
    """A message that became visible during its run would start a second one; a longer one blocks the group after a crash."""
    for step in FIFO_QUEUE_STEPS:
        assert QUEUES[f"{step.name.title()}Queue"]["FifoQueue"] is True
    for mapping in MAPPINGS.values():
        timeout = FUNCTIONS[mapping["FunctionName"]["Ref"]]["Timeout"]
        assert timeout < QUEUES[get_att(mapping["EventSourceArn"])]["VisibilityTimeout"] <= timeout + 5
    for name in ("Interrupt", "Requeue"):
        assert "FifoQueue" not in QUEUES[f"{name}Queue"]


@pytest.mark.parametrize("name", WORKING_QUEUES)
def test_every_queue_has_a_dead_letter_queue_with_an_alarm(name):
    """It keeps a failed message for two weeks."""
    queue = QUEUES[name]
    letters, most = get_att(queue["RedrivePolicy"]["deadLetterTargetArn"]), queue["RedrivePolicy"]["maxReceiveCount"]

    assert most >= 10 + TEN_MINUTES // SHORTEST_LONG_RETRY
    assert queue["MessageRetentionPeriod"] >= most * queue["VisibilityTimeout"]
    assert QUEUES[letters].get("FifoQueue") == queue.get("FifoQueue")
    assert QUEUES[letters]["MessageRetentionPeriod"] == DAYS_14
    watched = {get_att(dimension["Value"]) for alarm in ALARMS.values() for dimension in alarm.get("Dimensions", ())}
    assert letters in watched


ALARMS = {name: r["Properties"] for name, r in RESOURCES.items() if r["Type"] == "AWS::CloudWatch::Alarm"}


def metrics_of(alarm: dict) -> set[tuple[str, str, str]]:
    """Return the (namespace, metric, resource) that an alarm reads."""
    plain = [{"Metric": alarm}] if "MetricName" in alarm else []
    stats = plain + [query["MetricStat"] for query in alarm.get("Metrics", ()) if "MetricStat" in query]
    return {
        (m["Namespace"], m["MetricName"], d["Value"].get("Ref") or get_att(d["Value"]))
        for m in (stat["Metric"] for stat in stats)
        for d in m["Dimensions"]
    }


WATCHED = {watched for alarm in ALARMS.values() for watched in metrics_of(alarm)}


def test_every_function_and_queue_has_alarms():
    """A function that fails or waits makes no noise, nor does a message that is delivered again and again."""
    ages = {("AWS/SQS", "ApproximateAgeOfOldestMessage", name) for name in WORKING_QUEUES}
    assert ages | {("AWS/Lambda", metric, name) for metric in ("Errors", "Throttles") for name in FUNCTIONS} <= WATCHED


@pytest.mark.parametrize("name", ALARMS)
def test_every_alarm_is_sent_to_the_topic_and_reads_at_most_ten_metrics(name):
    """CloudWatch refuses more."""
    assert ALARMS[name]["AlarmActions"]["Fn::If"][0] == "HasAlarmTopic"
    assert len(ALARMS[name].get("Metrics", ())) <= 10


@table(
    "alarm", "function", "metric", "kind", "settings",
    no_data_without_a_sweep=(
        "SweepAlarm", "SUM", "journeyman_sweeps_total", "counter", {"TreatMissingData": "breaching", "Threshold": 1},
    ),
    run_with_a_wrong_setting_fails_no_function=("RunErrorsAlarm", "SUM", "journeyman_errors_total", "counter", {}),
    rejected_placement_has_no_dead_letter=(
        "DefectsAlarm", "SUM", "journeyman_plan_defects_total", "counter", {"Threshold": 0},
    ),
    pods_are_unreached_for_three_periods=(
        "UnreachedPodsAlarm", "MAX", "journeyman_scheduler_unreached_pods", "gauge",
        {"Threshold": 0, "EvaluationPeriods": 3, "TreatMissingData": "notBreaching"},
    ),
)  # fmt: skip
def test_alarm_reads_a_metric_of_the_product(alarm, function, metric, kind, settings):
    """A single pass that reaches the pods ends that alarm; without pods there is no data."""
    (query,) = ALARMS[alarm]["Metrics"]
    assert query["Expression"] == f"SELECT {function}({metric}) FROM {NAMESPACE}"
    assert METRICS[metric].kind == kind
    assert ALARMS[alarm].items() >= settings.items()


def test_every_rule_and_schedule_has_a_dead_letter_queue():
    """EventBridge drops what it cannot deliver; the queue's policy or the schedule's role lets it send."""
    schedules = of_type("AWS::Scheduler::Schedule").values()
    targets = [t for rule in RULES.values() for t in rule["Targets"]] + [s["Target"] for s in schedules]
    (role,) = RESOURCES["SchedulerRole"]["Properties"]["Policies"]
    (sending,) = (s for s in statements(role) if s["Action"] == "sqs:SendMessage")

    assert {get_att(target["DeadLetterConfig"]["Arn"]) for target in targets} == {"EventDeadLetters"}
    assert get_att(sending["Resource"]) == "EventDeadLetters"
    assert ("AWS/SQS", "ApproximateNumberOfMessagesVisible", "EventDeadLetters") in WATCHED


@pytest.mark.parametrize("name", QUEUES)
def test_every_queue_is_encrypted_and_requires_tls(name):
    """Messages are encrypted at rest and in transit."""
    assert QUEUES[name]["SqsManagedSseEnabled"] is True
    policies = [p for p in of_type("AWS::SQS::QueuePolicy").values() if {"Ref": name} in p["Queues"]]
    (policy,) = policies  # a second one would replace the first
    denials = [s for s in statements(policy) if s["Effect"] == "Deny"]
    assert denials[0]["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert denials[0]["Principal"] == "*"


def test_functions_report_failed_records_to_their_queues():
    """Without the report one failed message would return the whole batch."""
    assert {(m["FunctionName"]["Ref"], get_att(m["EventSourceArn"])) for m in MAPPINGS.values()} == {
        ("ProvisionFunction", "ProvisionQueue"),
        ("TerminateFunction", "TerminateQueue"),
        ("ConsolidateFunction", "ConsolidateQueue"),
        ("InterruptFunction", "InterruptQueue"),
        ("SweepFunction", "RequeueQueue"),
    }
    assert all(m["FunctionResponseTypes"] == ["ReportBatchItemFailures"] for m in MAPPINGS.values())


def test_functions_that_requeue_themselves_may_loop():
    """A chain passes through the sweep and a step's own queue; interrupt and the API start chains only."""
    loops = {name for name, f in FUNCTIONS.items() if f.get("RecursiveLoop")}
    no_value = {"Ref": "AWS::NoValue"}
    assert loops == {f"{step.name.title()}Function" for step in FIFO_QUEUE_STEPS} | {"SweepFunction"}
    assert {str(FUNCTIONS[name]["RecursiveLoop"]) for name in loops} == {
        str({"Fn::If": ["AllowsLoops", "Allow", no_value]})
    }


@pytest.mark.parametrize(("mode", "is_below_lambdas_limit"), [("Terminate", True), ("Allow", False)])
def test_chains_end_before_lambda_stops_them(mode, is_below_lambdas_limit):
    """A run with the last hop is the function's (hops + 1)th in its chain."""
    settings = read_environment(variables_of(RecursiveLoop=mode)).settings["dev"]
    assert (settings.max_hops + 1 < MAX_RUNS) is is_below_lambdas_limit


def test_functions_may_receive_from_their_own_queue_only():
    """SAM's SQS event would allow every queue of the account."""
    assert all("SQS" not in str(f.get("Events", "")) for f in FUNCTIONS.values())
    for mapping in MAPPINGS.values():
        own = [p for p in FUNCTIONS[mapping["FunctionName"]["Ref"]]["Policies"] if "Ref" not in p]
        queue = get_att(mapping["EventSourceArn"])
        assert [get_att(p["SQSPollerPolicy"]["QueueName"]) for p in own if "SQSPollerPolicy" in p] == [queue]
        (sending,) = (p["Statement"] for p in own if "Statement" in p)
        again = ["InterruptQueue"] if queue == "InterruptQueue" else []  # a message for each cluster that failed
        letters = get_att(QUEUES[queue]["RedrivePolicy"]["deadLetterTargetArn"])
        assert sending["Action"] == "sqs:SendMessage"
        assert [get_att(arn) for arn in listed(sending["Resource"])] == [letters, *again]


@pytest.mark.parametrize("clusters", [1, 50])
def test_no_function_starves_in_an_account_with_a_concurrency_limit_of_ten(clusters):
    """A new account has that limit. With one cluster all runs fit into it; with many, each step has a run at any time.

    A FIFO queue has one run per message group. The API runs as many requests as its burst, unless they are reserved.
    """
    default = TEMPLATE["Parameters"]["StepConcurrency"]["Default"]
    longest: dict[str, int] = {"ApiFunction": API["MethodSettings"][0]["ThrottlingBurstLimit"]}
    for mapping in MAPPINGS.values():
        allowed = mapping["ScalingConfig"]["MaximumConcurrency"]
        allowed = default if allowed == {"Ref": "StepConcurrency"} else allowed
        is_fifo = QUEUES[get_att(mapping["EventSourceArn"])].get("FifoQueue", False)
        longest[mapping["FunctionName"]["Ref"]] = min(allowed, clusters) if is_fifo else allowed
    longest["SweepFunction"] += 1  # the schedule's own run

    assert set(longest) == set(FUNCTIONS)
    if clusters == 1:
        assert sum(longest.values()) <= ACCOUNT_LIMIT
    of_steps = {name: runs for name, runs in longest.items() if name != "ApiFunction"}
    assert all(sum(of_steps.values()) - own < ACCOUNT_LIMIT for own in of_steps.values())


PAUSING_ALARMS = ["arn:aws:cloudwatch:us-east-1:123456789012:alarm:shop-errors"]


def matches(pattern: dict, event: dict) -> bool:
    """Return whether an event pattern of the template, deployed with `PauseOnAlarms`, matches the event."""
    return all(has_value(wanted, event.get(key, {})) for key, wanted in pattern.items())


def has_value(wanted, value) -> bool:
    if wanted == {"Ref": "PauseOnAlarms"}:
        return not set(PAUSING_ALARMS).isdisjoint(value)
    return matches(wanted, value) if isinstance(wanted, dict) else value in wanted


SAMPLES = sorted((ROOT / "events" / "eventbridge").rglob("*.json"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_rules_match_exactly_the_events_that_interrupt_handles(path):
    """Each such event matches one rule; other events cost no invocation."""
    event = json.loads(path.read_text())
    through = [name for name, rule in RULES.items() if matches(rule["EventPattern"], event)]
    trigger = parse_trigger(event)
    is_ignored = isinstance(trigger, Interruption) and trigger.kind is InterruptionKind.NO_OP
    assert len(through) == (0 if is_ignored else 1)


def test_only_the_alarms_of_the_parameter_pause_disruption():
    """Without them there is no rule, so that the alarms of an account cost no invocation."""
    event = json.loads((ROOT / "events" / "eventbridge" / "cloudwatch-alarm" / "alarm.json").read_text())
    pattern = RULES["AlarmRule"]["EventPattern"]
    assert not matches(pattern, {**event, "resources": ["arn:aws:cloudwatch:us-east-1:123456789012:alarm:other"]})
    assert RESOURCES["AlarmRule"]["Condition"] == "PausesOnAlarms"
    assert TEMPLATE["Parameters"]["PauseOnAlarms"]["Default"] == ""


def test_interrupt_queue_accepts_messages_from_the_rules_only():
    """The queues' policies name all rules of the stack: that of their target, and that of what they cannot deliver."""
    assert {get_att(t["Arn"]) for rule in RULES.values() for t in rule["Targets"]} == {"InterruptQueue"}
    for queue in ("InterruptQueue", "EventDeadLetters"):
        policy = RESOURCES[f"{queue}Policy"]["Properties"]
        (allow,) = [s for s in statements(policy) if s["Effect"] == "Allow"]
        assert {get_att(arn) for arn in allow["Condition"]["ArnEquals"]["aws:SourceArn"]} == set(RULES)
        assert (allow["Principal"], get_att(allow["Resource"])) == ({"Service": "events.amazonaws.com"}, queue)


def test_sweep_schedule_sends_a_parseable_trigger():
    """EventBridge Scheduler fills in the id and the time."""
    ((name, schedule),) = of_type("AWS::Scheduler::Schedule").items()
    text = schedule["Target"]["Input"].replace("<aws.scheduler.execution-id>", "d32c5k")
    text = text.replace("<aws.scheduler.scheduled-time>", "2026-11-21T09:00:00Z")
    trigger = parse_trigger(json.loads(text))

    assert (name, get_att(schedule["Target"]["Arn"])) == ("SweepSchedule", "SweepFunction")
    assert (trigger.step, trigger.cluster) == (Step.SWEEP, "*")
    assert "<" not in text


def every_allow() -> Iterator[tuple[str, dict]]:
    for name, resource in RESOURCES.items():
        properties = resource.get("Properties", {})
        documents = [p for p in [properties, *properties.get("Policies", [])] if "PolicyDocument" in p]
        for document in documents:
            yield from ((name, s) for s in statements(document) if s["Effect"] == "Allow")


def test_no_policy_allows_a_wildcard_action():
    """The policies list every allowed action."""
    allowed = {(name, action) for name, s in every_allow() for action in listed(s["Action"])}
    assert allowed
    assert {(name, action) for name, action in allowed if "*" in action} == set()


def test_only_read_actions_are_allowed_on_all_resources():
    """Describe and list calls cannot be restricted to resources; nor can the decoding of a refusal."""
    wide = {a for _, s in every_allow() if listed(s["Resource"]) == ["*"] for a in listed(s["Action"])}

    assert {a for a in wide if not a.startswith("ec2:Describe")} == {
        "pricing:GetProducts",
        "sts:DecodeAuthorizationMessage",
        "iam:ListInstanceProfiles",
        "scheduler:ListSchedules",
    }


def test_launches_and_terminations_require_the_clusters_tags():
    """The functions cannot change other clusters' instances in the account."""
    for _, statement in every_allow():
        if {"ec2:TerminateInstances", "ec2:CreateTags", "iam:CreateInstanceProfile"} & set(listed(statement["Action"])):
            equal = statement["Condition"]["StringEquals"].items()
            assert [v for k, v in equal if k.endswith("eks:eks-cluster-name")] == [{"Ref": "ClusterName"}]


def test_only_the_node_role_and_the_schedules_role_can_be_passed():
    """Each only to its own service. Passing another role would escalate privileges."""
    passing = {str(s["Resource"]): s["Condition"] for _, s in every_allow() if "iam:PassRole" in listed(s["Action"])}

    ec2 = ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]
    assert passing == {
        str({"Ref": "NodeRoleArn"}): {"StringEquals": {"iam:PassedToService": ec2}},
        str({"Fn::GetAtt": "WindowSchedulesRole.Arn"}): {
            "StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}
        },
    }
    assert TEMPLATE["Parameters"]["NodeRoleArn"]["Type"] == "CommaDelimitedList"


def test_only_instance_profiles_of_the_cluster_can_be_changed():
    """A tag in the request says nothing about the profile: only the path, which Journeyman gives each profile, does."""
    path = "arn:${AWS::Partition}:iam::${AWS::AccountId}:instance-profile/karpenter/${AWS::Region}/${ClusterName}/*"
    reading = {"iam:GetInstanceProfile", "iam:ListInstanceProfiles"}
    changing = [(a, s["Resource"]) for _, s in every_allow() for a in listed(s["Action"]) if a not in reading]
    assert {str(on) for action, on in changing if "InstanceProfile" in action} == {str({"Fn::Sub": path})}


def test_other_accounts_may_send_only_the_events_that_are_handled():
    """Any other event on the default bus could start a rule of the account's owner. Alarms are of this account only."""
    condition = RESOURCES["ClusterEventsPolicy"]["Properties"]["Statement"]["Condition"]["StringEquals"]
    patterns = [rule["EventPattern"] for name, rule in RULES.items() if name != "AlarmRule"]
    for field in ("source", "detail-type"):
        assert set(condition[f"events:{field}"]) == {value for pattern in patterns for value in pattern[field]}


def test_only_the_sweep_changes_schedules_and_only_those_of_the_group():
    """Their role sends to the two queues whose steps windows start, and to the dead-letter queue."""
    creating = [(name, s) for name, s in every_allow() if "scheduler:CreateSchedule" in listed(s["Action"])]
    (targets,) = RESOURCES["WindowSchedulesRole"]["Properties"]["Policies"]
    (sending,) = statements(targets)
    arn = "arn:${AWS::Partition}:scheduler:${AWS::Region}:${AWS::AccountId}:schedule/${WindowSchedules}/*"
    queues, policy = {"ConsolidateQueue", "ProvisionQueue", "EventDeadLetters"}, "WindowSchedulesPolicy"

    assert {(name, str(s["Resource"])) for name, s in creating} == {(policy, str({"Fn::Sub": arn}))}
    assert [name for name in FUNCTIONS if {"Ref": policy} in FUNCTIONS[name]["Policies"]] == ["SweepFunction"]
    assert {get_att(queue) for queue in sending["Resource"]} == queues
    assert RESOURCES["WindowSchedules"]["Type"] == "AWS::Scheduler::ScheduleGroup"


def test_keys_and_custom_parameters_are_readable_only_if_they_are_named():
    """Both are lists of ARNs, empty by default."""
    allowed = [(s.get("Sid"), action, s["Resource"]) for _, s in every_allow() for action in listed(s["Action"])]
    keys = [on for _, action, on in allowed if action.startswith("kms:")]
    (custom,) = (on for sid, action, on in allowed if (sid, action) == (CUSTOM_PARAMETERS, "ssm:GetParameters"))
    assert {str(resource) for resource in keys} == {str({"Ref": "KmsKeyArns"})}
    assert custom == {"Ref": "SsmParameterArns"}
    assert all(TEMPLATE["Parameters"][name]["Default"] == "" for name in ("KmsKeyArns", "SsmParameterArns"))


def test_forwarder_and_nodes_get_their_access_on_request():
    """The forwarder's role may send to its two queues; the entry of nodes has EKS's type for them."""
    role, entry = RESOURCES["ForwarderRole"], RESOURCES["NodeAccess"]
    assert role["Properties"]["ManagedPolicyArns"] == [{"Ref": "ForwarderPolicy"}]
    assert (role["Condition"], RESOURCES["ForwarderIdentity"]["Condition"]) == ("HasForwarderIdentity",) * 2
    assert (entry["Condition"], entry["Properties"]["Type"]) == ("HasNodeAccessEntry", "EC2_LINUX")


def test_each_function_has_the_policies_of_its_step():
    """Provision and consolidate launch instances, terminate ends them, and provision deletes resources of NodeClasses.

    Which calls need which rights, `test_account_rights` finds out.
    """
    launching = {f for f in FUNCTIONS if "ec2:RunInstances" in actions_of(f)}
    ending = {f for f in FUNCTIONS if "ec2:TerminateInstances" in actions_of(f)}
    releasing = {f for f in FUNCTIONS if {"iam:DeleteInstanceProfile", "ec2:DeleteLaunchTemplate"} & actions_of(f)}
    assert launching == {"ProvisionFunction", "ConsolidateFunction"}
    assert ending == {"TerminateFunction"}
    assert releasing == {"ProvisionFunction"}


def test_access_entries_have_the_groups_of_the_chart():
    """The groups are those that the chart's values name."""
    access = yaml.safe_load((ROOT / "infra" / "chart" / "values.yaml").read_text())["access"]
    entries = [entry for entry in of_type("AWS::EKS::AccessEntry").values() if "KubernetesGroups" in entry]
    groups = {get_att(e["PrincipalArn"]).removesuffix("Role"): e["KubernetesGroups"] for e in entries}
    assert groups == {f: [s["name"] for s in access[f.removesuffix("Function").lower()]] for f in FUNCTIONS}


def test_vpc_is_optional_and_its_interfaces_are_denied_to_our_code():
    """Private endpoints need a VPC; Lambda manages its interfaces through our roles, but our code may not."""
    parameters, settings = TEMPLATE["Parameters"], TEMPLATE["Globals"]["Function"]
    condition, inside, outside = settings["VpcConfig"]["Fn::If"]

    assert parameters["VpcSubnetIds"]["Default"] == parameters["VpcSecurityGroupIds"]["Default"] == ""
    assert "VpcSubnetIds" in str(TEMPLATE["Conditions"][condition])
    assert inside == {"SubnetIds": {"Ref": "VpcSubnetIds"}, "SecurityGroupIds": {"Ref": "VpcSecurityGroupIds"}}
    assert outside == {"Ref": "AWS::NoValue"}
    (denial,) = (s for s in statements(RESOURCES["FunctionPolicy"]["Properties"]) if s["Effect"] == "Deny")
    assert all({"Ref": "FunctionPolicy"} in function["Policies"] for function in FUNCTIONS.values())
    assert {a for a in denial["Action"] if not a.startswith("ec2:Describe")} == set(denial["Action"])
    assert "lambda:SourceFunctionArn" in denial["Condition"]["ArnLike"]


def may_assume(arn, **parameters):
    """Whether IAM lets a function of a stack with these parameters assume the role, as far as the function's policies go."""
    stack = SamStack(Account(), TEMPLATE, {"ClusterName": "c", "NodeRoleArn": "n", **parameters})
    policies = read_statements("FunctionPolicy", stack.policy_document("FunctionPolicy"))
    (right,) = needed_rights("sts", "AssumeRole", {"RoleArn": arn}, Account())
    return allowing_statement(policies, right) is not None


CLUSTER_TEMPLATE = read_template(ROOT / "infra" / "aws" / "cluster.yaml")


def cluster_role(account, step="Provision", prefix="emea"):
    """Return the ARN of a role that infra/aws/cluster.yaml creates."""
    role = CLUSTER_TEMPLATE["Resources"][f"{step}Role"]["Properties"]
    return f"arn:aws:iam::{account}:role{role['Path']}{role['RoleName']['Fn::Sub'].replace('${RolePrefix}', prefix)}"


MINE = {"ClusterRoleArns": f"arn:aws:iam::{FOREIGN}:role/mine-*"}
"""The parameters of a stack that may assume roles of one's own."""


@pytest.mark.parametrize("step", ["Provision", "Terminate", "Consolidate", "Interrupt", "Sweep", "Api"])
def test_cluster_of_a_named_account_needs_no_deployment_of_the_main_stack(step):
    """Its register entry names a role of infra/aws/cluster.yaml; the account is named once, for all of its clusters."""
    assert may_assume(cluster_role(OWN, step))
    for prefix in ("emea", "apac-2"):
        assert may_assume(cluster_role(OTHER, step, prefix), ClusterAccounts=f"{OTHER},444455556666")


@table(
    "arn", "parameters", "expected",
    cluster_of_another_account=(cluster_role(OTHER), {}, False),
    cluster_of_an_account_that_is_not_named=(cluster_role(FOREIGN), {"ClusterAccounts": OTHER}, False),
    another_role=(f"arn:aws:iam::{OTHER}:role/Administrator", {"ClusterAccounts": OTHER}, False),
    another_path=(f"arn:aws:iam::{OWN}:role/other/journeyman/emea-provision", {"ClusterAccounts": OTHER}, False),
    no_path=(f"arn:aws:iam::{OWN}:role/journeyman-emea-provision", {"ClusterAccounts": OTHER}, False),
    named_role=(f"arn:aws:iam::{FOREIGN}:role/mine-provision", MINE, True),
    role_beside_the_named_ones=(f"arn:aws:iam::{FOREIGN}:role/yours", MINE, False),
)  # fmt: skip
def test_roles_of_other_accounts_and_paths_may_not_be_assumed(arn, parameters, expected):
    """Who can write a register entry gains no other role. ClusterRoleArns names roles that were created otherwise."""
    assert may_assume(arn, **parameters) is expected


@pytest.mark.parametrize("kind", ["eks", "eks-config-map", "kubeconfig"])
def test_template_registers_clusters_in_the_form_that_the_code_parses(kind):
    """Its own cluster has the chosen access; further clusters are registered as written."""
    more = '[{"name": "emea", "region": "eu-west-1", "access": {"kind": "eks", "endpoint": "private"}}]'
    access = {"KubernetesAccess": kind, "KubeconfigPath": "/opt/kubeconfig"}
    clusters = read_environment(variables_of(**access, MoreClusters=more)).clusters
    assert set(clusters) == {"dev", "emea"}
    assert clusters["dev"].access == (KubeconfigAccess(path="/opt/kubeconfig") if kind == "kubeconfig" else EksAccess())
    assert clusters["emea"].access == EksAccess(endpoint="private")


def test_api_routes_except_the_forwarders_require_credentials():
    """A plan reveals much of a cluster. The forwarder has no AWS credentials, so its route is throttled instead."""
    assert API["Auth"] == {"DefaultAuthorizer": "AWS_IAM", "InvokeRole": "NONE"}
    routes = [event["Properties"] for event in FUNCTIONS["ApiFunction"]["Events"].values()]
    assert {(r["Method"], r["Path"]) for r in routes if "Auth" not in r} == {
        ("get", "/clusters"),
        ("get", "/clusters/{name}/plan"),
        ("get", "/clusters/{name}/metrics"),
        ("post", "/clusters/{name}/requeue"),
    }
    (unsigned,) = (r for r in routes if "Auth" in r)
    assert (unsigned["Method"], unsigned["Path"]) == ("post", "/clusters/{name}/events")
    assert unsigned["Auth"] == {"Authorizer": "NONE"}
    every, throttled = API["MethodSettings"]
    assert (every["HttpMethod"], every["ResourcePath"]) == ("*", "/*")
    assert (throttled["HttpMethod"], throttled["ResourcePath"].replace("~1", "/")) == ("POST", f"/{unsigned['Path']}")
    for limit in ("ThrottlingRateLimit", "ThrottlingBurstLimit"):
        condition, accepted, otherwise = throttled[limit]["Fn::If"]
        assert (condition, otherwise) == ("AcceptsEvents", 0)  # API Gateway then refuses every request
        assert accepted <= 20


def test_forwarder_policy_allows_sending_to_two_queues_only():
    """Its credentials are in the cluster."""
    (statement,) = statements(RESOURCES["ForwarderPolicy"]["Properties"])
    assert statement["Action"] == "sqs:SendMessage"
    assert {get_att(queue) for queue in statement["Resource"]} == {"ProvisionQueue", "TerminateQueue"}
