"""infra/huawei: schema, environment, triggers, agencies and limits of the deployment on FunctionGraph.

`huaweicloud_schema.json` is what the provider says about its resources (`tests.infra.huaweicloud_schema` writes it).
"""

import importlib
import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from journeyman.cloud.huawei.function_queue import FunctionQueue
from journeyman.cloud.huawei.rest_api import RestApiError, RestCall
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError
from journeyman.events import parse_trigger
from journeyman.events.huawei_events import TRACE_KINDS
from journeyman.ports import EVERY_CLUSTER, Message
from journeyman.runtime.environment import VARIABLES, read_environment
from journeyman.runtime.huawei import VARIABLES as HUAWEI_VARIABLES
from journeyman.runtime.huawei import read_huawei_environment
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.huawei_account import HuaweiAccount
from journeyman_simulator.huawei_account.fgs_stack import FgsStack, read_description
from journeyman_simulator.huawei_account.function_graph import MOST_INSTANCES
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.world import World
from tests.helpers.small_clusters import table
from tests.infra.built_layer import make
from tests.infra.huaweicloud_schema import FILE as SCHEMA_FILE
from tests.infra.huaweicloud_schema import used_types

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "infra" / "huawei"
SCHEMA = json.loads(SCHEMA_FILE.read_text())
DESCRIPTION = read_description()
START = datetime(2026, 11, 21, 9, 0, 30, tzinfo=timezone.utc)
CLUSTER_ID = "00000000-0000-4000-8000-000000000001"
SETTINGS = {"cluster_name": "demo", "cluster_id": CLUSTER_ID}
STEPS = [step.value for step in Step]
FUNCTION, TRIGGER = "huaweicloud_fgs_function", "huaweicloud_fgs_function_trigger"
MEMORY_SIZES = {128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096}
MOST_VARIABLES, MOST_CHARACTERS = 20, 4096
MOST_TRIGGERS = 10
MOST_AGENCIES = 50
LONGEST_AGENCY_NAME = 64


class Stage:
    """A stack in an account, and a simulation of it; `handle` is the handler of all functions."""

    def __init__(self, handle=lambda _event, _context: None, *, checks_permissions=False, **settings):
        self.clock = VirtualClock(START)
        self.account = HuaweiAccount(self.clock, types=["c7.large.2"])
        self.account.seed()
        self.stack = FgsStack(self.account, DESCRIPTION, {**SETTINGS, **settings})
        self.stack.create_resources(lambda _name: handle, self.clock, checks_permissions=checks_permissions)

    def run_for(self, seconds):
        World(self.clock, [self.stack.graph]).run_for(timedelta(seconds=seconds))

    def runs(self, function):
        return self.stack.functions[function].invocations


def stack(**settings) -> FgsStack:
    return FgsStack(HuaweiAccount(VirtualClock(START), types=[]), DESCRIPTION, {**SETTINGS, **settings})


ALL = {"apig_instance_id": "apig", "vpc_id": "vpc", "network_id": "subnet"}
STACK = stack()
FUNCTIONS = STACK.properties
TRIGGERS = stack(**ALL).module.resources(TRIGGER)


# --- the provider's schema


def problems(schema, values, path=""):
    """Yield what the provider would refuse in a block: its attributes, their types, and its nested blocks."""
    attributes, blocks = schema["attributes"], schema["blocks"]
    for name, value in values.items():
        if name in blocks:
            most = blocks[name]["most"]
            if not isinstance(value, list) or (most and len(value) > most):
                yield f"{path}{name}: not a block, or too many"
                continue
            for each in value:
                yield from problems(blocks[name], each, f"{path}{name}.")
        elif name not in attributes or attributes[name]["is"] == "computed":
            yield f"{path}{name}: cannot be set"
        elif not is_of_type(attributes[name]["type"], value):
            yield f"{path}{name}: {value!r} is no {attributes[name]['type']}"
    required = {name for name, attribute in attributes.items() if attribute["is"] == "required"}
    required |= {name for name, block in blocks.items() if block["least"]}
    yield from (f"{path}{name}: missing" for name in sorted(required - values.keys()))


def is_of_type(kind, value):
    if isinstance(kind, list):
        container, inner = kind
        if container == "map":
            return isinstance(value, dict) and all(is_of_type(inner, each) for each in value.values())
        return isinstance(value, list) and all(is_of_type(inner, each) for each in value)
    types = {"string": (str,), "number": (int, float), "bool": (bool,)}[kind]
    return isinstance(value, types) and isinstance(value, bool) is (kind == "bool")


def test_schema_has_exactly_the_types_of_the_description():
    """A resource of another type needs its schema."""
    assert {kind: sorted(types) for kind, types in SCHEMA.items()} == used_types()


@pytest.mark.parametrize("settings", [{}, ALL], ids=["defaults", "gateway-and-vpc"])
@pytest.mark.parametrize("kind", SCHEMA["resource"])
def test_resource_is_as_the_providers_schema_says(kind, settings):
    """Names, types, required attributes and nested blocks of every instance."""
    found = stack(**settings).module.resources(kind)
    assert found or kind == "huaweicloud_apig_group"
    assert [f"{name}: {p}" for name, values in found.items() for p in problems(SCHEMA["resource"][kind], values)] == []


def test_data_sources_are_as_the_providers_schema_says():
    """Their arguments are few, so that names suffice."""
    for block in DESCRIPTION:
        if block.kind == "data":
            known = SCHEMA["data"][block.labels[0]]["attributes"]
            assert all(known[name]["is"] != "computed" for name in block.attributes)


@pytest.mark.parametrize(
    ("kind", "change", "problem"),
    [
        (FUNCTION, {"memory": 512}, "memory: cannot be set"),
        (FUNCTION, {"timeout": "60"}, "timeout: '60' is no number"),
        (FUNCTION, {"max_instance_num": 1}, "max_instance_num: 1 is no string"),
        (FUNCTION, {"urn": "urn"}, "urn: cannot be set"),
        (FUNCTION, {"depend_list": "package"}, "depend_list: 'package' is no"),
        (FUNCTION, {"runtime": None}, "runtime: missing"),
        ("huaweicloud_fgs_async_invoke_configuration", {"on_failure": [{}, {}]}, "on_failure: not a block"),
        ("huaweicloud_fgs_async_invoke_configuration", {"on_failure": [{}]}, "on_failure.destination: missing"),
        ("huaweicloud_identity_agency", {"project_role": [{"project": "p", "roles": "r"}]}, "project_role.roles: 'r'"),
    ],
)
def test_schema_test_finds_mistakes(kind, change, problem):
    """Unknown, computed and missing attributes, wrong types, and blocks within blocks."""
    values = {**next(iter(STACK.module.resources(kind).values())), **change}
    values = {name: value for name, value in values.items() if value is not None}
    assert any(found.startswith(problem) for found in problems(SCHEMA["resource"][kind], values))


# --- functions


def test_every_step_the_api_and_the_delays_have_a_function():
    """`events` is a second function of the API, which anyone can call.

    `delay` waits for a message at most a minute, starts in some seconds, and hands over what is left.
    """
    assert set(FUNCTIONS) == {*STEPS, "api", "events", "delay"}
    assert (FUNCTIONS["delay"]["memory_size"], FUNCTIONS["delay"]["timeout"]) == (128, 90)
    assert int(FUNCTIONS["delay"]["max_instance_num"]) < MOST_INSTANCES / 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_handlers_exist_and_function_is_within_the_limits_of_function_graph(name):
    """FunctionGraph finds the modules in the archive. A longer run is no event of an asynchronous invocation."""
    properties = FUNCTIONS[name]

    for handler in (properties["handler"], properties["initializer_handler"]):
        module, _, function = handler.partition(".")
        assert callable(getattr(importlib.import_module(f"functions.huawei.{module}"), function))
    assert properties["memory_size"] in MEMORY_SIZES
    assert 3 <= properties["timeout"] <= 900
    assert 1 <= properties["initializer_timeout"] <= 300
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,58}[A-Za-z0-9]", properties["name"])
    assert 1 <= int(properties["max_instance_num"]) <= MOST_INSTANCES


def test_names_are_within_the_limits_with_the_longest_name():
    """Of functions, of agencies, and of the bucket: its name ends in the project's id."""
    longest = stack(name="j" * 29)
    (bucket,) = longest.module.resources("huaweicloud_obs_bucket").values()
    agencies = longest.module.resources("huaweicloud_identity_agency").values()
    assert all(len(properties["name"]) <= 60 for properties in longest.properties.values())
    assert all(len(agency["name"]) <= LONGEST_AGENCY_NAME for agency in agencies)
    assert 3 <= len(bucket["bucket"]) <= 63


MORE = [
    {"name": f"production-{n}", "region": "cn-north-4", "access": {"kind": "cce", "clusterId": CLUSTER_ID, "projectId": "0" * 32}}
    for n in range(9)
]  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_environment_of_ten_clusters_is_within_the_limits(name):
    """FunctionGraph counts the variables, and the characters of their JSON."""
    found = stack(more_clusters=json.dumps(MORE), forwarder_service_account="journeyman/journeyman-forwarder")
    environment = found.environment_of(name)
    assert len(found.properties[name]["user_data"]) <= MOST_CHARACTERS
    assert len(environment) <= MOST_VARIABLES
    assert len(read_environment(environment, has_sqs=False).clusters) == 10


def test_most_settings_fill_the_environment_and_one_more_is_refused():
    """FunctionGraph would refuse the function after half of the deployment."""
    most = {f"NAME_{n}": "value" for n in range(11)}
    environment = stack(settings=json.dumps(most)).environment_of("events")
    assert len(environment) == MOST_VARIABLES
    with pytest.raises(ConfigurationError, match="settings has more than 11 entries"):
        stack(settings=json.dumps({**most, "NAME": "value"}))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("settings", json.dumps({"SCHEDULER_CONFIG": "x" * MOST_CHARACTERS}), "more than 4096 characters"),
        ("cluster_endpoint", "private", "set vpc_id and network_id"),
        ("cluster_endpoint", "internal", "public or private"),
        ("cluster_id", "demo", "not a UUID"),
        ("name", "Journeyman", "lower-case letters"),
        ("cluster", "demo", "no variable cluster"),
    ],
)
def test_invalid_settings_are_refused_before_anything_is_created(name, value, problem):
    """The module's validations and preconditions say what to correct."""
    with pytest.raises(ConfigurationError, match=problem):
        stack(**{name: value}).properties  # noqa: B018 - evaluates them


def test_environment_is_what_the_code_reads():
    """Nothing but the clusters differs from the code's defaults, and every variable is known.

    The URNs that the queue invokes are those of the functions.
    """
    environment = STACK.variables
    needed = {"JOURNEYMAN_CLUSTERS": environment["JOURNEYMAN_CLUSTERS"], "JOURNEYMAN_MAX_HOPS": "240"}
    known = {variable.name for variable in (*VARIABLES, *HUAWEI_VARIABLES)}
    of_events = {"FORWARDER_SERVICE_ACCOUNT", "FORWARDER_AUDIENCE"}

    assert read_environment(environment, has_sqs=False) == read_environment(needed, has_sqs=False)
    assert {name for name in environment if not name.startswith("POWERTOOLS_")} <= known
    assert set(STACK.environment_of("events")) - set(environment) == of_events
    huawei, urns = read_huawei_environment(environment), STACK.module.outputs()["functions"].items()
    assert {name: huawei.urn(name) for name in FUNCTIONS} == {name: urn.removesuffix(":latest") for name, urn in urns}
    assert (huawei.domain_id, huawei.project_id) == (HuaweiAccount.domain_id, HuaweiAccount.project_id)


# --- triggers


def trigger_data(name):
    return json.loads(TRIGGERS[name]["event_data"])


def test_only_the_events_function_can_be_called_without_a_signature():
    """The clusters authenticate its senders. Without a gateway, neither function has a URL. Triggers have a quota."""
    api, events = trigger_data("api.0"), trigger_data("events.0")
    functions = [trigger["function_urn"] for trigger in TRIGGERS.values()]

    assert (api["auth"], events["auth"]) == ("IAM", "NONE")
    assert (events["req_method"], events["path"]) == ("POST", "/events")
    assert int(FUNCTIONS["events"]["max_instance_num"]) == 2
    assert not [t for t in STACK.module.resources(TRIGGER).values() if t["type"] == "DEDICATEDGATEWAY"]
    assert max(functions.count(urn) for urn in functions) <= MOST_TRIGGERS


def test_cts_trigger_has_exactly_the_operations_with_an_effect():
    """Each other one would start the function for nothing; interruptions have a resource type of their own."""
    operations = [operation.split(":") for operation in trigger_data("interruption.0")["operations"]]
    kinds = [("ECS", "server" if name == "interruptServer" else "ecs") for _, _, name in operations]
    effective = {name for name, kind in TRACE_KINDS.items() if kind is not InterruptionKind.NO_OP}
    assert {name for _, _, name in operations} == effective
    assert len(operations) <= 10
    assert [(service, resource) for service, resource, _ in operations] == kinds


def test_timer_has_an_event_that_the_parser_understands():
    """The sweep of each minute, which also starts the steps at the edges of windows; the timer's rate is in minutes."""
    stage = Stage()
    timers = [(timer.name, timer.at - START) for timer in stage.stack.timers.timers]
    stage.clock.advance_to(START + timedelta(minutes=2))
    stage.stack.timers.act()
    stage.stack.graph.act()
    (sweep,) = stage.runs("sweep")

    assert timers == [("every-minute", timedelta(minutes=1))]
    assert (parse_trigger(sweep.event).step, parse_trigger(sweep.event).cluster) == (Step.SWEEP, EVERY_CLUSTER)
    assert stage.runs("consolidate") == []


# --- messages


def test_interruption_reaches_the_function_and_is_repeated_until_it_is_a_dead_letter():
    """CTS's trace starts the function; FunctionGraph repeats it three times. A failed sweep is left to the next one."""
    stage = Stage(failing)
    stage.account.events.publish("interruptServer", "server-1", "node-1", by_system=True)
    stage.account.events.publish("startServer", "server-1", "node-1")
    stage.stack.invoke_async("sweep", {"own": True})
    stage.run_for(60)

    assert [run.outcome for run in stage.runs("interrupt")] == [InvocationOutcome.FAILED] * 4
    (letter,) = stage.stack.dead_letters()
    assert letter["request_payload"]["cts"]["resource_id"] == "server-1"
    assert letter["request_context"]["approximate_invoke_count"] == 4
    assert letter["request_context"]["function_urn"].endswith(":journeyman-interrupt:latest")
    assert len([run for run in stage.runs("sweep") if run.event == {"own": True}]) == 1


def failing(_event, _context):
    raise RuntimeError("no")


def test_message_of_the_queue_arrives_when_it_is_due():
    """It goes to the function `delay`, whose instance waits; a due one goes to its step at once."""

    def message_after(seconds):
        at = START + timedelta(seconds=seconds)
        return Message(cluster="demo", step=Step.TERMINATE, reason=f"after {seconds} s", at=at)

    def deliver(event, _context):
        if "messages" in event:
            own = queue_of("journeyman-delay")
            own.deliver_delayed(event, ends_at=stage.clock.now() + timedelta(seconds=90))

    def queue_of(caller):
        urns = {step: stage.stack.urn_of(step.value) for step in Step}
        names = {"functions": urns, "delay_function": stage.stack.urn_of("delay")}
        account = stage.account
        return FunctionQueue(account.rest_api(caller), stage.clock, project_id=account.project_id, **names)

    stage = Stage(deliver)
    queue_of("journeyman-provision").send([message_after(seconds) for seconds in (0, 40, 20)])
    stage.run_for(10)
    assert [run.started_at for run in stage.runs("terminate")] == [START]
    stage.run_for(50)

    later = [run.started_at - START for run in stage.runs("terminate")[1:]]
    assert later == [timedelta(seconds=20), timedelta(seconds=40)]
    assert {run.outcome for run in stage.runs("delay")} == {InvocationOutcome.SUCCEEDED}
    assert stage.account.permissions.denied == []


# --- agencies


def test_agencies_allow_what_the_function_does_and_nothing_else():
    """The function `delay` invokes the deployment's functions, not others, and creates no nodes."""
    stage = Stage(checks_permissions=True)
    base = f"/v2/{stage.account.project_id}/fgs/functions"
    nodes = f"/api/v3/projects/{stage.account.project_id}/clusters/{CLUSTER_ID}/nodes"
    other = stage.stack.urn_of("sweep").replace("journeyman-sweep", "payroll")
    invocation = {"method": "POST", "service": "functiongraph", "body": {}}

    def call(caller, operation, path, **more):
        given = {"service": "cce", "method": "GET", **more}
        return stage.account.rest_api(f"journeyman-{caller}")(RestCall(operation=operation, path=path, **given))

    path = f"{base}/{stage.stack.urn_of('sweep')}/invocations-async"
    assert call("delay", "AsyncInvokeFunction", path, **invocation)["request_id"]
    for caller, operation, path, more in (
        ("delay", "AsyncInvokeFunction", f"{base}/{other}/invocations-async", invocation),
        ("delay", "CreateNode", nodes, {"method": "POST", "body": {}}),
        ("sweep", "ListNodes", nodes, {}),
        ("terminate", "CreateNode", nodes, {"method": "POST", "body": {}}),
        ("provision", "DeleteNode", f"{nodes}/n", {"method": "DELETE"}),
    ):
        with pytest.raises(RestApiError) as refused:
            call(caller, operation, path, **more)
        assert refused.value.status == 403, (caller, operation)


def test_each_function_has_an_agency_of_its_own():
    """Of FunctionGraph, with policies that exist; an account has few agencies."""
    agencies = STACK.module.resources("huaweicloud_identity_agency").values()
    assert len({properties["agency"] for properties in FUNCTIONS.values()}) == len(FUNCTIONS) == len(agencies)
    assert len(agencies) <= MOST_AGENCIES
    assert {agency["delegated_service_name"] for agency in agencies} == {"op_svc_cff"}


def test_every_policy_is_attached_and_of_the_right_scope():
    """Policies of BSS and OBS are global ones: IAM ignores them in a project."""
    found = stack(**ALL)
    attached = {name for function in found.properties for name in found.policies_of(function)}
    roles = found.module.resources("huaweicloud_identity_role").values()

    assert attached == {role["name"] for role in roles}
    for role in roles:
        actions = [action for s in json.loads(role["policy"])["Statement"] for action in s["Action"]]
        assert role["type"] == ("AX" if all(a.startswith(("bss:", "obs:")) for a in actions) else "XA"), role["name"]


# --- deploying


@table(
    "variables", "said",
    without_terraform=({"TERRAFORM": "no-such-program"}, "OpenTofu"),
    without_a_cluster=({"TERRAFORM": "true", "HW_REGION_NAME": "r", "TF_VAR_cluster_name": ""}, "TF_VAR_cluster_id"),
)  # fmt: skip
def test_deploying_names_what_is_missing(variables, said):
    """Before anything is built."""
    done = make("deploy-huawei", f"TERRAFORM={variables['TERRAFORM']}", **variables)
    assert done.returncode != 0
    assert said in done.stdout


def test_readme_lists_every_variable_of_the_module():
    """With its default, which the table shows."""
    text = (FOLDER / "README.md").read_text()
    assert [name for name in STACK.module.variables if f"`{name}`" not in text] == []
