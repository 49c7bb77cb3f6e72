"""The functions' agencies allow exactly the calls that the functions make to Huawei Cloud.

The account evaluates the policies of infra/huawei for each request of a function, which is signed with the temporary key of the
function's agency and sent over HTTP. Every function is a process of its own, as on FunctionGraph: it shares no cache with the others.
"""

import base64
import json
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from journeyman.cloud.huawei.sdk_client import SdkRestApi, function_credentials
from journeyman.core.api.objects import CCENODECLASS, NODECLAIM
from journeyman.core.plan import Step
from journeyman.kube.clusters import ClusterRegistry, read_clusters, registered
from journeyman.runtime.access_providers import own_access_providers
from journeyman.runtime.adapters import SystemClock
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman.runtime.huawei import HuaweiAdapters, read_huawei_environment
from journeyman.runtime.receiver import TOKEN_REVIEW
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.huawei_account import HuaweiAccount
from journeyman_simulator.huawei_account.cce_clusters import ClusterCertificate
from journeyman_simulator.huawei_account.fgs_stack import FgsStack, read_description
from journeyman_simulator.huawei_account.iam_permissions import IamPermissions
from journeyman_simulator.huawei_account.local_huawei import LocalHuaweiDeployment
from journeyman_simulator.huawei_account.rest_operations import RestOperation
from journeyman_simulator.huawei_account.rest_server import serving
from journeyman_simulator.lambda_functions import InvocationOutcome
from tests.controlplane.certificates import Authority
from tests.infra.rights_scenario import RightsScenario, Unmeasured

SAMPLES = Path(__file__).parents[2] / "events" / "huawei"
START = datetime(2026, 11, 21, 9, 0, tzinfo=timezone.utc)  # the time of the samples
STEPS = tuple(step.value for step in Step)
FUNCTIONS = (*STEPS, "api", "events", "delay")
CLUSTER_ID = "c1000000-0000-4000-8000-000000000001"
FORWARDER = {"FORWARDER_SERVICE_ACCOUNT": "journeyman/forwarder", "FORWARDER_AUDIENCE": "journeyman"}
UNOBSERVED = {
    "obs:object:PutObject": "FunctionGraph itself stores dead letters: test_agency_stores_the_dead_letters_of_its_function"
}
READS_NO_NETWORK = "some regions check cce:cluster:get for client certificates (docs/architecture.md); this function does nothing else with it"
UNOBSERVED_OF = {
    "terminate": {"cce:cluster:get": READS_NO_NETWORK},
    "consolidate": {"cce:job:get": "a replacement whose CreateNode got no answer is found like a node of provision"},
    "interrupt": {"cce:cluster:get": READS_NO_NETWORK},
    "sweep": {"cce:cluster:get": READS_NO_NETWORK},
    "events": {"cce:cluster:get": READS_NO_NETWORK},
}


class _Adapters(Unmeasured, HuaweiAdapters):
    """The adapters of FunctionGraph, without metrics."""


class _Store:
    """The API server for one process, which authenticates every sender of events."""

    def __init__(self, server):
        self._server = server

    def create(self, resource, body, **more):
        if resource is TOKEN_REVIEW:
            user = {"username": "system:serviceaccount:journeyman:forwarder"}
            return {"status": {"authenticated": True, "audiences": ["journeyman"], "user": user}}
        return self._server.create(resource, body, **more)

    def __getattr__(self, verb):
        return getattr(self._server, verb)


class Scenario(RightsScenario):
    """Runs the deployment with the account's services at a URL."""

    def __init__(self, deployment, services):
        self.services = services
        super().__init__(deployment)

    def new_runtime(self):
        variables = self.deployment.stack.variables
        huawei = read_huawei_environment(variables)

        def rest_api(region, project_id):
            return SdkRestApi(
                region,
                project_id,
                huawei.domain_id,
                self.deployment.clock,
                function_credentials,
                endpoint=lambda _service, _region: self.services,
                pause=lambda _seconds: None,
            )

        environment = read_environment(variables, has_sqs=False)
        clock = self.deployment.clock
        adapters = _Adapters(
            environment, huawei, clock=clock, rest_api=rest_api, stores=lambda _: self._connected_store()
        )
        return Runtime(adapters.clusters.settings, adapters)

    def _connected_store(self):
        """Return the API server in memory, after the process got a client certificate of the cluster."""
        store = _Store(self.store())
        clusters = json.loads(self.deployment.stack.variables["JOURNEYMAN_CLUSTERS"])
        clusters[0]["access"] |= {"api": self.services, "endpoint": "private"}
        # signatures have the machine's time
        providers = own_access_providers(SystemClock(), {}, cce=function_credentials)
        ClusterRegistry(registered(read_clusters(json.dumps(clusters))), providers).connect("demo")
        return store

    def server_of(self, claim):
        """Return the record of a NodeClaim's server."""
        servers = self.deployment.account.instances.known.values()
        return next(server for server in servers if server.node_id == claim.status.provider_id)

    def initialized_claim(self, pool):
        """Return the first NodeClaim of a NodePool that has an initialized node and is not being deleted."""
        found = (c for c in self.claims(pool) if c.metadata.deletion_timestamp is None and c.status.node_name)
        return next(found)


def sample(path):
    return json.loads((SAMPLES / path).read_text())


def fail_messages(scenario):
    """Send each function a message that can never succeed, and one that fails until the cluster answers."""
    stack, now = scenario.deployment.stack, scenario.deployment.clock.now().isoformat()
    for name in (*STEPS, "delay"):
        stack.invoke_async(name, {"no": "message"})
        if name != "delay":
            body = {"version": "1", "source": "requeue", "id": name, "time": now, "cluster": "demo", "step": name}
            stack.invoke_async(name, body)
    scenario.is_down = True
    scenario.run(seconds=20)
    scenario.is_down = False
    scenario.run(minutes=1)
    letters = {letter["request_context"]["function_urn"].split(":")[6] for letter in stack.dead_letters()}
    assert letters == {f"journeyman-{name}" for name in (*STEPS, "delay") if name != "sweep"}


def call_api(scenario):
    """Request every route; the last event is of a forwarder that the cluster authenticates."""
    claims = {"sub": "system:serviceaccount:journeyman:forwarder", "aud": ["journeyman"], "exp": 4e9}
    token = f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()}.e30"
    event = sample("apig/post-event.json")
    body = json.loads(base64.b64decode(event["body"])) | {"time": scenario.deployment.clock.now().isoformat()}
    accepted = event | {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "headers": event["headers"] | {"authorization": f"Bearer {token}"},
    }
    for name, request, status in (
        ("api", sample("apig/get-clusters.json"), 200),
        ("api", sample("apig/get-metrics.json"), 200),
        ("api", sample("apig/get-plan.json"), 200),
        ("api", sample("apig/post-requeue.json"), 202),
        ("events", event, 401),
        ("events", accepted, 202),
    ):
        invocation = scenario.deployment.stack.functions[name].invoke(request)
        assert invocation.outcome is InvocationOutcome.SUCCEEDED, invocation.error
        assert invocation.response["statusCode"] == status, invocation.response


def lose_answers(scenario):
    """Lose the answers about two nodes: the one cannot be built, the other is interrupted before provision finds it."""
    account, provision = scenario.deployment.account, scenario.deployment.stack.functions["provision"]
    until = scenario.deployment.clock.now() + timedelta(seconds=60)
    for name in account.catalogue.flavors:
        for zone in account.zones:
            account.fails_in_job(name, zone, "on-demand", until)
    account.lose_next_answer("CreateNode", 2)
    scenario.pool("scarce", CCENODECLASS, "on-demand")
    scenario.create_workload("scarce", 1, "1", "scarce")
    scenario.create_workload("interrupted", 1, "6", "spot")
    scenario.until(lambda: len(unrecorded(scenario)) == 2, "two lost answers", minutes=1)
    provision.is_throttled = True
    scenario.run(seconds=20)
    (server,) = (s for s in account.instances.alive() if s.name in unrecorded(scenario) and s.capacity_type == "spot")
    account.interrupt(server.id)
    scenario.run(seconds=20)
    provision.is_throttled = False
    assert any(job.phase == "Failed" and "Ecs.0319" in job.reason for job in account.nodes.jobs.values())
    for name in ("scarce", "interrupted"):
        scenario.until_running(name, 1)


def unrecorded(scenario):
    """Return the names of nodes whose NodeClaims do not know them."""
    known = {claim.status.provider_id for claim in scenario.claims()}
    return {node.name for node in scenario.deployment.account.nodes.nodes.values() if node.id not in known}


def maintain(scenario):
    """Schedule maintenance of a node's host, interrupt a Spot node, and leave a server without a NodeClaim."""
    account = scenario.deployment.account
    spot = scenario.initialized_claim("spot")
    account.schedule_maintenance(scenario.server_of(spot).id, within=timedelta(hours=1))
    scenario.deployment.interrupt(spot.status.provider_id)
    scenario.run(minutes=7)
    scarce = scenario.initialized_claim("scarce")
    scenario.server.patch(NODECLAIM, scarce.metadata.name, {"metadata": {"finalizers": None}})
    scenario.server.delete(NODECLAIM, scarce.metadata.name)
    orphan = scenario.server_of(scarce)
    scenario.until(lambda: orphan.is_deleting, "garbage collection", minutes=20)


def run_everything(scenario):
    """Launch, fail, interrupt, maintain, replace and delete nodes."""
    fail_messages(scenario)
    key_pair = next(iter(scenario.deployment.account.nodes.key_pairs))
    scenario.node_class(
        CCENODECLASS,
        {
            "subnetSelectorTerms": [{"name": "demo"}, {"name": "demo-2"}],
            "imsSelector": {"imsFamily": "Huawei Cloud EulerOS 2.0"},
            "blockDeviceMappings": {"root": {"volumeSize": 40, "volumeType": "SSD"}},
            "login": {"sshKey": key_pair},
        },
    )
    scenario.pool("spot", CCENODECLASS, "spot")
    scenario.deploy("web", 2, "1", "spot")
    scenario.restart()
    call_api(scenario)
    lose_answers(scenario)
    maintain(scenario)
    scenario.replace_node(CCENODECLASS)
    scenario.remove_everything()


@pytest.fixture(scope="module")
def permissions(tmp_path_factory):
    """Run the scenario; return the permissions that it used."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    certificate, key = authority.issue("journeyman")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in FORWARDER.items():
            patch.setenv(name, value)
        deployment = stack.enter_context(LocalHuaweiDeployment(start=START))
        (cluster,) = deployment.account.clusters.known.values()
        cluster.certificate = ClusterCertificate(
            authority=authority.certificate.read_bytes(), certificate=certificate.read_bytes(), key=key.read_bytes()
        )
        scenario = Scenario(deployment, stack.enter_context(serving(deployment.account)))
        run_everything(scenario)
        return deployment.account.permissions


@pytest.mark.slow
def test_no_call_of_a_function_is_denied(permissions):
    """Each call of the scenario is allowed by the agency of the function that makes it."""
    assert sorted(set(permissions.denied)) == []
    assert set(permissions.needed) == {f"journeyman-{name}" for name in FUNCTIONS}


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_right_of_a_function_is_used(permissions, function):
    """A right that the scenario does not need is not granted, except those that no call of the function shows."""
    name = f"journeyman-{function}"
    unused = permissions.granted(name) - permissions.used[name]
    expected = {*UNOBSERVED, *UNOBSERVED_OF.get(function, ())}
    assert {right.action for right in unused} == expected & {right.action for right in permissions.granted(name)}


# --- the policies by themselves


def fgs_stack(**variables):
    """Return the deployment in a VPC, with every policy."""
    settings = {"cluster_name": "demo", "cluster_id": CLUSTER_ID, "vpc_id": "vpc", "network_id": "subnet"}
    account = HuaweiAccount(VirtualClock(START), types=[])
    return FgsStack(account, read_description(), {**settings, **variables})


STACK = fgs_stack()
POLICIES = {name: STACK.policies_of(name) for name in FUNCTIONS}
"""The policy documents by name, of each function."""
(BUCKET,) = (values["bucket"] for values in STACK.module.resources("huaweicloud_obs_bucket").values())


def is_allowed(policies, action, resource=""):
    permissions = IamPermissions("cn-north-4", HuaweiAccount.domain_id)
    permissions.attach("function", policies)
    operation = RestOperation(service="-", name="-", method="-", path="-", action=action, resource=resource)
    return permissions.is_allowed("function", operation, {})


CASES = [
    ("provision", "cce:node:create", f"cluster:{CLUSTER_ID}", True),
    ("provision", "cce:node:delete", f"cluster:{CLUSTER_ID}", False),
    ("provision", "ecs:cloudServers:delete", "", False),
    ("provision", "ecs:cloudServers:list", "", True),
    ("provision", "vpc:subnets:get", "", True),
    ("provision", "vpc:subnets:delete", "", False),
    ("terminate", "cce:node:delete", f"cluster:{CLUSTER_ID}", True),
    ("terminate", "cce:node:create", f"cluster:{CLUSTER_ID}", False),
    ("terminate", "cce:cluster:delete", f"cluster:{CLUSTER_ID}", False),
    ("terminate", "ecs:cloudServers:delete", "", False),
    ("terminate", "ecs:instanceScheduledEvents:accept", "", False),
    ("interrupt", "cce:node:list", f"cluster:{CLUSTER_ID}", True),
    ("interrupt", "cce:node:delete", f"cluster:{CLUSTER_ID}", False),
    ("interrupt", "ecs:cloudServers:delete", "", False),
    ("sweep", "cce:cluster:generateClientCredential", f"cluster:{CLUSTER_ID}", True),
    ("sweep", "cce:node:list", f"cluster:{CLUSTER_ID}", False),
    ("sweep", "vpc:ports:create", "", True),
    ("sweep", "vpc:vpcs:delete", "", False),
    ("api", "cce:node:create", f"cluster:{CLUSTER_ID}", False),
    ("events", "cce:node:list", f"cluster:{CLUSTER_ID}", False),
    ("delay", "cce:cluster:generateClientCredential", f"cluster:{CLUSTER_ID}", False),
    ("delay", "functiongraph:function:invokeAsync", "function:default/journeyman-provision", True),
    ("delay", "functiongraph:function:invokeAsync", "function:default/payroll", False),
    ("delay", "functiongraph:function:invoke", "function:default/journeyman-provision", False),
    ("delay", "functiongraph:function:updateCode", "function:default/journeyman-provision", False),
    ("consolidate", "bss:discount:view", "", True),
    ("consolidate", "bss:discount:update", "", False),
    ("provision", "bss:discount:view", "", False),
    ("provision", "obs:object:PutObject", f"object:{BUCKET}/dead-letters/1", True),
    ("provision", "obs:object:PutObject", "object:payroll/1", False),
    ("provision", "obs:object:DeleteObject", f"object:{BUCKET}/dead-letters/1", False),
    ("sweep", "obs:object:PutObject", f"object:{BUCKET}/dead-letters/1", False),
]
"""Whether a function's agency allows an action on a resource."""


@pytest.mark.parametrize(("function", "action", "resource", "expected"), CASES)
def test_agency_allows_only_what_its_function_does(function, action, resource, expected):
    """Functions and buckets by their names; of CCE, ECS and VPC only the actions."""
    assert is_allowed(POLICIES[function], action, resource) is expected


def test_functions_without_a_vpc_have_no_rights_on_networks():
    """FunctionGraph connects functions to a VPC only where one is set."""
    actions = {
        action
        for name in FUNCTIONS
        for document in fgs_stack(vpc_id="", network_id="").policies_of(name).values()
        for statement in document["Statement"]
        for action in statement["Action"]
    }

    assert {action for action in actions if action.startswith("vpc:")} == {"vpc:subnets:get"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_agency_stores_the_dead_letters_of_its_function(function):
    """FunctionGraph writes them with the function's agency: every function with a failure destination may do so, no other."""
    configs = STACK.module.resources("huaweicloud_fgs_async_invoke_configuration").values()
    (config, *_) = [c for c in configs if c["function_urn"].split(":")[6] == f"journeyman-{function}"] or [{}]
    places = [json.loads(destination["param"]) for destination in config.get("on_failure", ())]

    assert is_allowed(POLICIES[function], "obs:object:PutObject", f"object:{BUCKET}/x") is bool(places)
    for place in places:
        name = f"object:{place['bucket']}{place['prefix']}/1"
        assert is_allowed(POLICIES[function], "obs:object:PutObject", name)


def statements():
    """Yield (policy, number, statement) of each statement of the deployment."""
    documents = {policy: document for policies in POLICIES.values() for policy, document in policies.items()}
    for policy, document in sorted(documents.items()):
        yield from ((policy, number, statement) for number, statement in enumerate(document["Statement"]))


def mutated(function, policy, number, change):
    """Return the policies of a function with one statement changed."""
    policies = json.loads(json.dumps(POLICIES[function]))
    if policy in policies:
        change(policies[policy]["Statement"][number])
    return policies


def noticed_by_cases(policy, number, change):
    """Return the cases that have another outcome with one statement changed."""
    return [case for case in CASES if is_allowed(mutated(case[0], policy, number, change), *case[1:3]) is not case[3]]


def all_of_service(service):
    def change(statement):
        statement["Action"] = [*statement["Action"], f"{service}:*"]

    return change


SERVICES = [
    (policy, number, service)
    for policy, number, statement in statements()
    for service in sorted({action.partition(":")[0] for action in statement["Action"]})
]


@pytest.mark.parametrize(("policy", "number", "service"), SERVICES)
def test_statement_with_all_actions_of_a_service_is_caught(policy, number, service):
    """It allows a call that must not be."""
    assert noticed_by_cases(policy, number, all_of_service(service))


@pytest.mark.parametrize(("policy", "number"), [(p, n) for p, n, statement in statements() if "Resource" in statement])
def test_statement_on_all_resources_is_caught(policy, number):
    """Functions and buckets of others must not be reached."""
    assert noticed_by_cases(policy, number, lambda statement: statement.pop("Resource"))


OBSERVED = [
    (policy, number, action)
    for policy, number, statement in statements()
    for action in statement["Action"]
    if action not in UNOBSERVED
    and policy != "journeyman-network"  # FunctionGraph itself connects functions to their VPC
]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "number", "action"), OBSERVED)
def test_each_action_of_a_policy_is_missed_when_it_is_removed(permissions, policy, number, action):
    """Otherwise the scenario would not notice a right that the deployment lacks."""
    missing = {
        function
        for function in FUNCTIONS
        for needed, resource in permissions.needed[f"journeyman-{function}"]
        if needed == action
        and not is_allowed(
            without_network(mutated(function, policy, number, without(action))), action, resource.split(":", 3)[3]
        )
    }

    assert missing


def without(action):
    def change(statement):
        statement["Action"] = [each for each in statement["Action"] if each != action]

    return change


def without_network(policies):
    """Return the policies of a function outside of a VPC, whose rights on networks replace no others."""
    return {name: document for name, document in policies.items() if name != "journeyman-network"}
