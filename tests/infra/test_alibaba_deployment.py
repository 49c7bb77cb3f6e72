"""infra/alibaba: triggers, queues, environment and quotas of the deployment on Function Compute."""

import importlib
import json
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, create_model

from journeyman.cloud.alibaba.smq_queue import LONGEST_DELAY_SECONDS
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.events import parse_trigger
from journeyman.ports import EVERY_CLUSTER
from journeyman.runtime.alibaba import read_alibaba_environment
from journeyman.runtime.environment import VARIABLES, read_environment
from journeyman_simulator.alibaba_account import AlibabaAccount
from journeyman_simulator.alibaba_account.event_stream import EventStreamMapping
from journeyman_simulator.alibaba_account.fc_stack import FcStack, read_description
from journeyman_simulator.alibaba_account.smq import SimulatedSmq
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.lambda_functions import InvocationOutcome
from tests.contract.crds.rule import with_value
from tests.helpers.small_clusters import table
from tests.infra.built_layer import make

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "events" / "alibaba"
DESCRIPTION = read_description()
START = datetime(2026, 11, 21, 9, 0, 30, tzinfo=timezone.utc)
SETTINGS = {"JOURNEYMAN_CLUSTER_NAME": "demo", "JOURNEYMAN_CLUSTER_ID": "c1"}
STEPS = [step.value for step in Step]
MOST_ENVIRONMENT_BYTES = 4096
MOST_RULES = 10  # of cloud services, on the default bus
MOST_TRIGGERS = 10  # of a function
MOST_FUNCTION_SECONDS = 86_400
LARGEST_TIMER_PAYLOAD = 128 * 1024
REFUSED_VARIABLES = re.compile(r"FC_.*|ALIBABA_CLOUD_.*|accessKey.*|securityToken", re.IGNORECASE)


def stack(**settings) -> FcStack:
    clock = VirtualClock(START)
    account = AlibabaAccount(clock, types=["ecs.g7.large"])
    return FcStack(account, SimulatedSmq(clock), DESCRIPTION, {**SETTINGS, **settings})


STACK = stack()
FUNCTIONS = STACK.properties
TRIGGERS = [(name, trigger) for name, props in FUNCTIONS.items() for trigger in props["triggers"]]
NAMED = [f"{name}-{trigger['triggerName']}" for name, trigger in TRIGGERS]


# --- the documented schema of fc3; an unknown property is an error


def strict(**fields: Any) -> type[BaseModel]:
    """Return a model with no other properties than these: a dict is a nested model, a pair a type with its default."""
    given = {}
    for name, of in fields.items():
        kind, default = of if isinstance(of, tuple) else (of, ...)
        given[name] = (strict(**kind) if isinstance(kind, dict) else kind, default)
    return create_model("Strict", __config__=ConfigDict(extra="forbid", strict=True), **given)


def optional(**fields: Any) -> tuple[Any, None]:
    return strict(**fields) | None, None


def between(low: int, high: int, **more: int) -> Any:
    return Annotated[int, Field(ge=low, le=high, **more)]


def text(pattern: str) -> Any:
    return Annotated[str, Field(pattern=pattern)]


QUEUE_ARN = r"acs:mns:[a-z0-9-]+:\d+:/queues/[A-Za-z0-9-]+"
TIMER = strict(
    triggerName=str,
    triggerType=Literal["timer"],
    triggerConfig={
        "cronExpression": str,
        "enable": bool,
        "payload": Annotated[str, Field(max_length=LARGEST_TIMER_PAYLOAD)],
    },
)
HTTP = strict(
    triggerName=str,
    triggerType=Literal["http"],
    triggerConfig={
        "authType": Literal["function", "anonymous", "jwt"],
        "methods": list[Literal["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"]],
        "disableURLInternet": bool,
    },
)
MNS_SOURCE = strict(
    eventSourceType=Literal["MNS"],
    eventSourceParameters={"sourceMNSParameters": {"RegionId": str, "QueueName": str, "IsBase64Decode": bool}},
)
DEFAULT_SOURCE = strict(eventSourceType=Literal["Default"], eventSourceParameters={})
STREAMING = strict(
    mode=Literal["event-streaming"],
    errorsTolerance=Literal["NONE", "ALL"],
    retryStrategy={"PushRetryStrategy": Literal["BACKOFF_RETRY", "EXPONENTIAL_DECAY_RETRY"]},
    deadLetterQueue={"Arn": text(QUEUE_ARN)},
    batchWindow={"CountBasedWindow": between(1, 10_000), "TimeBasedWindow": between(0, 15)},
)
EVENT_BRIDGE = strict(
    triggerName=str,
    triggerType=Literal["eventbridge"],
    triggerConfig={
        "triggerEnable": bool,
        "asyncInvocationType": bool,
        "eventRuleFilterPattern": str,
        "eventSourceConfig": MNS_SOURCE | DEFAULT_SOURCE,
        "eventSinkConfig": {"deliveryOption": {"eventSchema": Literal["CloudEvents", "RawData"]}},
        "runOptions": STREAMING | strict(mode=Literal["event-driven"]),
    },
)
FUNCTION = strict(
    region=str,
    functionName=text(r"[A-Za-z_][A-Za-z0-9_-]{0,63}"),
    description=str,
    runtime=Literal["python3.9", "python3.10", "python3.12"],
    code=str,
    handler=text(r"\w+\.\w+"),
    layers=list[text(r"acs:fc:[a-z0-9-]+:\d+:layers/[\w-]+/versions/\d+")],
    role=text(r"acs:ram::\d+:role/[A-Za-z0-9.-]{1,64}"),
    cpu=Annotated[float, Field(ge=0.05, le=16)],
    memorySize=between(128, 32_768, multiple_of=64),
    diskSize=Literal[512, 10_240],
    timeout=between(1, MOST_FUNCTION_SECONDS),
    instanceConcurrency=Literal[1],  # Function Compute's Python runtimes allow no other
    internetAccess=bool,
    logConfig=Literal["auto"],
    environmentVariables=dict[str, str],
    instanceLifecycleConfig={"initializer": {"handler": str, "timeout": between(1, 300)}},
    asyncInvokeConfig=optional(
        maxAsyncRetryAttempts=between(0, 8),
        maxAsyncEventAgeInSeconds=between(1, 604_800),
        destinationConfig=optional(onFailure={"destination": text(f"{QUEUE_ARN}/messages")}),
    ),
    concurrencyConfig=optional(reservedConcurrency=between(1, 90)),
    triggers=list[TIMER | HTTP | EVENT_BRIDGE],
)
QUEUE = strict(
    QueueName=text(r"[A-Za-z][A-Za-z0-9-]{0,119}"),
    VisibilityTimeout=(between(1, 43_200), 30),
    MessageRetentionPeriod=between(60, 604_800),
)
STATEMENT = strict(
    Effect=Literal["Allow"],
    Action=list[text(r"(ecs|vpc|cs|ram|mns):[A-Z][A-Za-z0-9]+")],
    Resource=Literal["*"] | list[text(r"acs:(ecs|vpc|cs|ram|mns):[^*]*(\*[^*]*)*")],
    Condition=(dict[Literal["StringEquals", "StringLike"], dict[str, list[str]]] | None, None),
)
POLICY = strict(
    PolicyName=text(r"[A-Za-z0-9-]{1,128}"),
    Description=str,
    PolicyDocument={"Version": Literal["1"], "Statement": list[STATEMENT]},
)
ROLE = strict(
    RoleName=text(r"[A-Za-z0-9.-]{1,64}"),
    AssumeRolePolicyDocument=dict[str, Any],
    PolicyAttachments=dict[Literal["Custom"], list[str]],
)
ROS = strict(region=str, name=str, template=str, parameters=dict[str, str])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_has_only_properties_that_fc3_documents(name):
    """The component ignores a misspelt property, which would then have no effect."""
    FUNCTION.model_validate(dict(FUNCTIONS[name]))


SOURCE = "triggers.0.triggerConfig.eventSourceConfig.eventSourceParameters.sourceMNSParameters"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("memory", 512),
        ("timeout", "60"),
        ("memorySize", 1000),
        ("triggers.0.config", {}),
        ("triggers.0.triggerConfig.runOptions.mode", "event_streaming"),
        (f"{SOURCE}.queueName", "q"),
        ("environmentVariables.LOG_LEVEL", 1),
    ],
)
def test_schema_refuses_mistakes(path, value):
    """Names, types, ranges and modes."""
    with pytest.raises(ValueError, match="validation error"):
        FUNCTION.model_validate(with_value(json.loads(json.dumps(FUNCTIONS["provision"])), path, value))


def test_template_has_only_properties_that_ros_documents():
    """Its queues, policies and roles; the resource of Serverless Devs that deploys it; and no other type of resource."""
    ros, cloud = STACK.ros, DESCRIPTION.serverless["resources"]["cloud"]["props"]
    for model, found in ((QUEUE, ros.queues), (POLICY, ros.policies), (ROLE, ros.roles), (ROS, {"cloud": cloud})):
        for properties in found.values():
            model.model_validate(properties)
    assert (ROOT / cloud["template"]).is_file()
    assert {resource["Type"] for resource in DESCRIPTION.template["Resources"].values()} == {
        "ALIYUN::MNS::Queue",
        "ALIYUN::RAM::ManagedPolicy",
        "ALIYUN::RAM::Role",
    }


# --- functions


def test_every_step_and_the_api_has_a_function():
    """`events` is a second function of the API, whose trigger is anonymous."""
    assert set(FUNCTIONS) == {*STEPS, "api", "events"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_handler_and_initializer_exist(name):
    """The code folder has the modules, by which Function Compute finds them.

    It refuses fewer or more than one to four gigabytes for each CPU, and CPUs that are no multiple of 0.05.
    """
    props = FUNCTIONS[name]
    for handler in (props["handler"], props["instanceLifecycleConfig"]["initializer"]["handler"]):
        module, _, function = handler.partition(".")
        assert callable(getattr(importlib.import_module(f"functions.alibaba.{module}"), function))
    assert (ROOT / "infra" / "alibaba" / props["code"]).resolve() == ROOT / "functions" / "alibaba"
    assert 1 <= props["memorySize"] / 1024 / props["cpu"] <= 4
    assert round(props["cpu"] * 100) % 5 == 0


TEN = [
    {"name": f"production-{n}", "region": "ap-southeast-1", "access": {"kind": "ack", "clusterId": f"c{n:032x}"}}
    for n in range(9)
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_environment_of_ten_clusters_is_within_four_kilobytes(name):
    """Function Compute counts all names and values, and refuses its own names."""
    settings = {"JOURNEYMAN_CLUSTER_ID": f"c{1:032x}", "JOURNEYMAN_MORE_CLUSTERS": json.dumps(TEN)}
    settings["FORWARDER_SERVICE_ACCOUNT"] = "journeyman/journeyman-forwarder"
    environment = stack(**settings).properties[name]["environmentVariables"]
    assert sum(len(key) + len(value) for key, value in environment.items()) <= MOST_ENVIRONMENT_BYTES
    assert not [key for key in environment if REFUSED_VARIABLES.fullmatch(key)]
    assert len(read_environment(environment, has_sqs=False).clusters) == 10


def test_environment_is_what_the_code_reads():
    """The defaults of s.yaml are those of the code; the queues' names are those that the template creates."""
    environment = STACK.variables
    needed = {"JOURNEYMAN_CLUSTERS": environment["JOURNEYMAN_CLUSTERS"], "JOURNEYMAN_MAX_HOPS": "240"}
    prefix = read_alibaba_environment(environment).queue_prefix
    known = {variable.name for variable in VARIABLES} | {"SMQ_ENDPOINT", "JOURNEYMAN_QUEUE_PREFIX"}

    assert read_environment(environment, has_sqs=False) == read_environment(needed, has_sqs=False)
    assert set(STACK.queue_names.values()) == {f"{prefix}{name}" for name in (*STEPS, "dead-letters")}
    assert {name for name in environment if not name.startswith("POWERTOOLS_")} <= known


# --- triggers


@pytest.mark.parametrize("step", STEPS)
def test_every_step_has_a_stream_from_its_own_queue(step):
    """Messages are decoded, invocations synchronous, and what never succeeds goes to the dead-letter queue.

    A message that became visible during its run would start a second one; its retention starts when it is sent.
    """
    (config,) = [t["triggerConfig"] for t in FUNCTIONS[step]["triggers"] if t["triggerName"] == "queue"]
    source = config["eventSourceConfig"]["eventSourceParameters"]["sourceMNSParameters"]
    queue = STACK.ros.queues[f"{step.title()}Queue"]

    assert source == {"RegionId": "cn-hangzhou", "QueueName": f"journeyman-{step}", "IsBase64Decode": True}
    assert (config["triggerEnable"], config["asyncInvocationType"]) == (True, False)
    assert config["runOptions"]["mode"] == "event-streaming"
    assert config["runOptions"]["deadLetterQueue"]["Arn"].endswith(":/queues/journeyman-dead-letters")
    assert FUNCTIONS[step]["timeout"] < queue["VisibilityTimeout"] <= FUNCTIONS[step]["timeout"] + 5
    assert queue["MessageRetentionPeriod"] > LONGEST_DELAY_SECONDS


def test_triggers_are_within_the_quotas():
    """Rules for cloud services on the default bus, and triggers of a function."""
    rules = [name for name, trigger in TRIGGERS if source_type(trigger) == "Default"]
    assert len(rules) <= MOST_RULES
    assert set(rules) == {"interrupt"}
    assert max(len(props["triggers"]) for props in FUNCTIONS.values()) <= MOST_TRIGGERS
    assert len(set(NAMED)) == len(NAMED)


def source_type(trigger):
    return trigger["triggerConfig"].get("eventSourceConfig", {}).get("eventSourceType")


@pytest.fixture(scope="module")
def created():
    """Return a stack whose functions record their events."""
    found = stack()
    found.create_resources(lambda _name: lambda _event, _context: None, VirtualClock(START), checks_permissions=False)
    return found


ECS_EVENTS = sorted((SAMPLES / "ecs").glob("*.json"))


@pytest.mark.parametrize("path", ECS_EVENTS, ids=lambda path: path.stem)
def test_event_has_a_rule_exactly_if_the_parser_finds_an_effect(created, path):
    """A rule that passes other events starts the function for nothing."""
    event = json.loads(path.read_text())
    matching = [rule.name for rule in created.rules if rule.matches(event)]
    assert (len(matching) == 1) is (parse_trigger(event).kind is not InterruptionKind.NO_OP), matching


def test_timer_has_a_payload_that_the_parser_understands(created):
    """The sweep of each minute, which also starts the steps at the edges of windows. Each queue has a stream."""
    (timer,) = created.timers.timers
    sweep = parse_trigger({"triggerTime": "2026-11-21T09:00:00Z", "triggerName": timer.name, "payload": timer.payload})
    assert timer.function.name == "journeyman-sweep"
    assert (sweep.step, sweep.cluster) == (Step.SWEEP, EVERY_CLUSTER)
    assert {mapping.function.name for mapping in created.mappings} == {f"journeyman-{step}" for step in STEPS}
    assert all(isinstance(mapping, EventStreamMapping) for mapping in created.mappings)


def test_only_the_events_function_can_be_called_without_a_signature():
    """The clusters authenticate its senders; its URL is closed by default, and few requests run at once."""
    http = {name: t["triggerConfig"] for name, t in TRIGGERS if t["triggerType"] == "http"}
    assert {name: config["authType"] for name, config in http.items()} == {"api": "function", "events": "anonymous"}
    assert http["events"] == {"authType": "anonymous", "methods": ["POST"], "disableURLInternet": True}
    assert FUNCTIONS["events"]["concurrencyConfig"] == {"reservedConcurrency": 2}
    assert "FORWARDER_SERVICE_ACCOUNT" not in FUNCTIONS["api"]["environmentVariables"]


def test_interruption_reaches_the_function_and_is_repeated_until_it_is_a_dead_letter():
    """ECS's event goes through a rule and asynchronous invocations, of which there are nine."""
    clock = VirtualClock(START)
    account = AlibabaAccount(clock, types=["ecs.g7.large"])
    found = FcStack(account, SimulatedSmq(clock), DESCRIPTION, SETTINGS)
    found.create_resources(lambda _name: failing, clock, checks_permissions=False)
    account.bus.publish("Instance:PreemptibleInstanceInterruption", "i-1", {"instanceId": "i-1", "action": "delete"})
    while (due := found.invocations.due()) is not None:
        clock.advance_to(max(due, clock.now()))
        found.invocations.act()
    runs = found.functions["interrupt"].invocations

    assert [run.outcome for run in runs] == [InvocationOutcome.FAILED] * 9
    (letter,) = found.dead_letters()
    assert json.loads(letter.text)["requestPayload"]["subject"].endswith("instance/i-1")


def failing(_event, _context):
    raise RuntimeError("no")


# --- deploying


@table(
    "program", "variables", "said",
    without_serverless_devs=("no-such-program", {}, "npm install -g @serverless-devs/s"),
    without_a_cluster=("true", {"JOURNEYMAN_CLUSTER_NAME": "", "JOURNEYMAN_CLUSTER_ID": ""}, "JOURNEYMAN_CLUSTER_ID"),
)  # fmt: skip
def test_deploying_names_what_is_missing(program, variables, said):
    """Before anything is built."""
    done = make("deploy-alibaba", f"S={program}", **variables)
    assert done.returncode != 0
    assert said in done.stdout


def test_readme_lists_every_setting_of_the_description():
    """A setting is an environment variable that s.yaml reads."""
    read = set(re.findall(r"env\('(\w+)'", (ROOT / "infra" / "alibaba" / "s.yaml").read_text()))
    text = (ROOT / "infra" / "alibaba" / "README.md").read_text()
    assert sorted(name for name in read if f"`{name}`" not in text) == []
