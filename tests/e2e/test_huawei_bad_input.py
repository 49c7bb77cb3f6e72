"""What is wrong in a CCENodeClass, a registration or an event of Huawei Cloud is reported with its remedy, and leaves nothing behind.

Other NodePools go on meanwhile. `test_cloud_bad_input` has what is equal in other clouds.
"""

import json
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from journeyman.core.api.objects import CCENODECLASS, NODEPOOL
from journeyman.errors import InvalidError
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.workload_controllers import DEPLOYMENT
from tests.e2e.bad_cloud_input import HUAWEI, START, BadInputCluster, bad_input_cluster

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parents[2] / "events" / "huawei"
NAME = HUAWEI.node_class_name


@pytest.fixture
def cluster():
    """Return a cluster whose pods wait; afterwards, the cluster is emptied and nothing may be left."""
    with bad_input_cluster(HUAWEI) as opened:
        yield opened


def add_other_pool(cluster):
    """Create a second NodePool with a NodeClass of its own, and a workload that needs it."""
    node_class = cluster.server.get(CCENODECLASS, NAME)
    workload = cluster.server.get(DEPLOYMENT, HUAWEI.workload, namespace="default")
    spec = json.loads(json.dumps(workload["spec"]))
    spec |= {"replicas": 1, "selector": {"matchLabels": {"app": "other"}}}
    spec["template"]["metadata"]["labels"] = {"app": "other"}
    spec["template"]["spec"]["nodeSelector"] = {"karpenter.sh/nodepool": "other"}
    reference = {"group": CCENODECLASS.group, "kind": CCENODECLASS.kind, "name": "other"}
    requirement = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
    cluster.server.load(
        [
            {
                "apiVersion": CCENODECLASS.api_version,
                "kind": "CCENodeClass",
                "metadata": {"name": "other"},
                "spec": node_class["spec"],
            },
            {
                "apiVersion": "karpenter.sh/v1",
                "kind": "NodePool",
                "metadata": {"name": "other"},
                "spec": {
                    "template": {"spec": {"nodeClassRef": reference, "requirements": [requirement]}},
                    "disruption": {"consolidateAfter": "Never"},
                },
            },
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "other", "namespace": "default"},
                "spec": spec,
            },
        ]
    )


def servers_of(cluster, pool):
    """Return the servers of a NodePool."""
    return [s for s in cluster.account.instances.alive() if s.tags.get("karpenter-nodepool") == pool]


@contextmanager
def with_mistake(cluster, resource, mistake, correction):
    """Yield while an object has a mistake: the other NodePool gets its node, the wrong one gets none."""
    add_other_pool(cluster)
    cluster.server.patch(resource, NAME, {"spec": mistake})
    cluster.until_running(1, app="other")
    cluster.run(1)
    yield
    assert servers_of(cluster, NAME) == []
    assert len(servers_of(cluster, "other")) == 1
    assert cluster.deployment.stack.dead_letters() == []
    cluster.server.delete(DEPLOYMENT, "other", namespace="default")
    cluster.server.delete(NODEPOOL, "other")
    cluster.server.patch(resource, NAME, {"spec": correction})


DISKS = {"root": {"volumeSize": 40, "volumeType": "SSD", "iops": None, "throughput": None}}
MISTAKES = {
    "unknown subnet": ("subnetSelectorTerms", [{"name": "nowhere"}], "SubnetsNotFound: SubnetSelector did not match"),
    "subnet of another VPC": ("subnetSelectorTerms", [{"name": "elsewhere"}], "select subnets of that VPC"),
    "unknown OS": ("imsSelector", {"imsFamily": "BeOS 5"}, "Correct spec.imsSelector.imsFamily"),
    "unknown key pair": ("login", {"sshKey": "other", "userPassword": None}, "the key pair 'other' does not exist"),
    "plain password": (
        "login",
        {"userPassword": {"username": "root", "password": "secret"}},
        "password must be salted, hashed",
    ),
    "unknown agency": ("agencyName", "other", "the agency 'other' does not exist"),
    "root disk too large": (
        "blockDeviceMappings",
        {"root": {"volumeSize": 2000}},
        "root.volumeSize is 2000; CCE takes at most 1024 GiB there. Reduce it",
    ),
    "unknown volume type": (
        "blockDeviceMappings",
        {"root": {"volumeType": "FAST"}},
        "root.volumeType is 'FAST'; use one of SAS, SSD",
    ),
    "IOPS of a type without": ("blockDeviceMappings", {"root": {"iops": 3000}}, "Remove it, or use the type GPSSD2"),
    "more IOPS than the size allows": (
        "blockDeviceMappings",
        {"root": {"volumeType": "GPSSD2", "iops": 128_000, "throughput": 200}},
        "spec.rootVolume.iops must be 3000 to 128000, and at most 500 per GiB",
    ),
    "unsuitable hardening": (
        "securityReinforcementType",
        "cybersecurity",
        "use 'Huawei Cloud EulerOS 2.0' or remove securityReinforcementType",
    ),
}
ALSO = {"unsuitable hardening": {"imsSelector": {"imsFamily": "Ubuntu 22.04"}}}
"""What else is changed for a mistake."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_in_a_node_class_is_a_condition_and_stops_no_other(cluster, mistake):
    """What can be seen beforehand is a condition of the NodeClass, what CCE refuses one of the NodePool."""
    field, value, remedy = MISTAKES[mistake]
    cluster.account.network.add_subnet("elsewhere", "192.168.0.0/24", vpc_id="7c700000-0000-4000-8000-000000000009")
    original = cluster.server.get(CCENODECLASS, NAME)["spec"]
    correction = {
        **{name: original[name] for name in ("subnetSelectorTerms", "imsSelector")},
        "login": {"sshKey": None, **original["login"]},
        "blockDeviceMappings": DISKS,
        "agencyName": None,
        "securityReinforcementType": None,
    }
    with with_mistake(cluster, CCENODECLASS, {**ALSO.get(mistake, {}), field: value}, correction):
        secret = "secret" if mistake == "plain password" else "no such text"
        said = cluster.said_by_node_class() + cluster.said_by_pools()
        assert any(remedy in text for text in said), said
        assert secret not in json.dumps([*said, *cluster.said_by_events(), *cluster.logged()])


def test_too_many_taints_are_a_condition_of_the_node_claim(cluster):
    """CCE takes twenty; the NodeClaim is replaced once the NodePool is corrected."""
    taints = [{"key": f"example.com/{number}", "effect": "PreferNoSchedule"} for number in range(25)]
    mistake, correction = ({"template": {"spec": {"taints": each}}} for each in (taints, None))
    with with_mistake(cluster, NODEPOOL, mistake, correction):
        said = cluster.said_by_claims()
        assert any("has 26 taints, and CCE accepts 20; remove some from the NodePool" in text for text in said), said


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        ({"owner": "\u00e4"}, "spec.tags.owner"),
        ({"a key": "x"}, "1 to 36 letters, digits"),
        ({"CCE-own": "x"}, "reserved by CCE"),
        ({"karpenter-nodepool": "x"}, "set by the controller"),
        ({f"tag{n}": "x" for n in range(5)}, "at most 4"),
    ],
)
def test_tags_that_cce_refuses_cannot_be_written(cluster, tags, problem):
    """The CRD has the rules, so the API server refuses them; the NodeClass stays as it was."""
    with pytest.raises(InvalidError, match=problem):
        cluster.edit_node_class(tags=tags)


def test_turbo_cluster_uses_no_flavor_without_sub_interfaces():
    """Pods of a CCE Turbo cluster need them; the Event says that no instance type fits, until the NodePool allows another."""
    key = "node.kubernetes.io/instance-type"
    with bad_input_cluster(HUAWEI) as cluster:
        (known,) = cluster.account.clusters.known.values()
        known.network_mode = "eni"
        requirements = cluster.server.get(NODEPOOL, NAME)["spec"]["template"]["spec"]["requirements"]
        unfit = [{**r, "values": ["s6.xlarge.2", "s6.2xlarge.4"]} if r["key"] == key else r for r in requirements]
        cluster.server.patch(NODEPOOL, NAME, {"spec": {"template": {"spec": {"requirements": unfit}}}})
        cluster.run(5)

        assert servers_of(cluster, NAME) == []
        said = [text for text in cluster.said_by_events() if "Failed to schedule pod" in text]
        assert any(NAME in text and key in text for text in said), said
        cluster.server.patch(NODEPOOL, NAME, {"spec": {"template": {"spec": {"requirements": requirements}}}})


def test_full_subnet_is_skipped_for_another(cluster):
    """Subnets serve all zones, so nodes start in the one that has free addresses."""
    by_name = {subnet.name: subnet.id for subnet in cluster.account.network.subnets.values()}
    cluster.account.set_free_addresses(by_name["demo"], 0)
    cluster.edit_node_class(subnetSelectorTerms=[{"name": "demo"}, {"name": "demo-2"}])
    cluster.until_running(3)

    assert {server.subnet_id for server in servers_of(cluster, NAME)} == {by_name["demo-2"]}


def test_missing_stock_in_jobs_is_reported_and_leaves_no_node(cluster):
    """CCE accepts every node and fails to build it; offerings are skipped, and used again once there is stock."""
    until = cluster.deployment.clock.now() + timedelta(minutes=10)
    for pool in cluster.pools():
        cluster.account.fails_in_job(*pool, until)
    cluster.run(8)

    said = cluster.said_by_events()
    assert any("could not be built, there is no stock of the instance type in the zone" in text for text in said), said
    assert any("Failed to schedule pod" in text and "NoStock" in text for text in said), said
    assert cluster.deployment.leftovers() == ()
    assert cluster.account.nodes.nodes == {}
    cluster.until_running(3, minutes=90)


def test_used_up_quota_lets_the_nodes_that_fit_start(cluster):
    """One server fits; the pods of the other NodeClaim wait with the remedy, and get a node soon after the quota is raised."""
    cluster.account.server_quota = 1
    cluster.run(3)

    said = cluster.said_of_launches()
    assert len(servers_of(cluster, NAME)) == 1
    for kind in ("CCENodeClass", "NodePool", "Pod"):
        assert all("the quota of ECS servers is used up" in text for text in said[kind]), said
        assert all("Request a higher one in the console" in text for text in said[kind]), said
    cluster.account.server_quota = None
    cluster.until_running(3, minutes=10)


def test_nodes_start_and_end_although_cce_throttles_lists(cluster):
    """CCE lists nodes twice a minute only; runs that it refuses are repeated, and lose no message and no node."""
    cluster.account.limit_rate("ListNodes", 2)
    cluster.until_running(3)
    cluster.scale(0)
    cluster.world.run_until(
        lambda: not cluster.deployment.leftovers(), within=timedelta(minutes=30), waiting_for="no nodes"
    )

    assert [line for line in cluster.logs if "throttles cce:node:list" in line["message"]]
    assert cluster.deployment.stack.dead_letters() == []
    cluster.account.limit_rate("ListNodes", None)
    cluster.scale(3)


# --- registrations


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        (
            {"cluster_id": "00000000-0000-4000-8000-00000000dead"},
            "CCE has no cluster 00000000-0000-4000-8000-00000000dead in this project; correct its registration",
        ),
        ({"project_id": "f" * 32}, "the projectId of the cluster's registration"),
    ],
)
def test_wrong_cluster_or_project_is_named_with_the_remedy(settings, remedy):
    """Nothing is launched; the NodeClass's condition says what to correct, or the log if the cloud answers nothing at all."""
    logs = []
    with HUAWEI.deployment(start=START, settings=settings, on_log=logs.append) as deployment:
        cluster = BadInputCluster(HUAWEI, deployment, logs)
        cluster.scale(3)
        cluster.run(5)

        said = cluster.said_by_node_class() + cluster.logged()
        assert any(remedy in text for text in said), said
        assert deployment.price_per_hour == 0
        assert not deployment.calls().get("CreateNode")


# --- events


def sample(path, **changed):
    return {**json.loads((SAMPLES / path).read_text()), **changed}


def trace(**changed):
    return {"cts": {**sample("cts/interrupt-server.json")["cts"], **changed}}


def notice(message):
    event = sample("smn/pods-unschedulable.json")
    event["record"][0]["smn"]["message"] = message
    return event


def requeue(**changed):
    fields = {"version": "1", "source": "requeue", "id": "1", "time": START.isoformat(), "cluster": "demo"}
    return {**fields, "step": "terminate", **changed}


def delayed(body):
    at = (START + timedelta(seconds=20)).isoformat()
    return {"version": "1", "source": "delay", "messages": [{"at": at, "function": "sweep", "body": body}]}


WINDOW = "timer/consolidation-window.json"
MALFORMED = {
    "trace without a name": ("interrupt", {"cts": {}}, "missing required field `trace_name`"),
    "trace without a server": ("interrupt", trace(resource_id=None), "it names no server"),
    "trace without a time": ("interrupt", trace(time="yesterday"), "no time - at `time`"),
    "trace of no object": ("interrupt", {"cts": "interruptServer"}, "expected an object - at `$.cts`"),
    "notice that is no JSON": ("interrupt", notice("not JSON"), "cannot read the message .* of a topic"),
    "notice without a source": ("provision", notice("{}"), "cannot read the event"),
    "empty notice": ("provision", {"record": []}, "expected one message, got 0"),
    "window that is no JSON": ("consolidate", sample(WINDOW, user_event="{"), "cannot read the user event"),
    "window of an unknown cluster": (
        "consolidate",
        sample(WINDOW, user_event=json.dumps({"source": "schedule", "cluster": "other", "step": "consolidate"})),
        "cluster 'other' is not registered here.*register it",
    ),
    "text": ("provision", "not JSON", "cannot read the event"),
    "later version": ("terminate", requeue(version="9"), "Invalid enum value '9'"),
    "unknown cluster": ("terminate", requeue(cluster="other"), "cluster 'other' is not registered here.*register it"),
    "message of another step": ("terminate", requeue(step="provision"), "arrived at terminate.*send it to its own step"),
    "delay without a time": ("delay", {**delayed("{}"), "messages": [{"at": "x"}]}, "cannot read the event of the function delay"),
    "delayed text": ("delay", delayed("not JSON"), "is not JSON.*fix the sender"),
}  # fmt: skip


@pytest.fixture(scope="module")
def with_malformed_events():
    """Send every malformed event while pods wait; return the cluster once they run, and the dead letters."""
    logs = []
    with HUAWEI.deployment(start=START, on_log=logs.append) as deployment:
        cluster = BadInputCluster(HUAWEI, deployment, logs)
        for function, event, _ in MALFORMED.values():
            deployment.stack.invoke_async(function, event)
        deployment.stack.invoke_async("sweep", sample("timer/minute-sweep.json", user_event="not JSON"))
        cluster.scale(3)
        cluster.until_running(3)
        yield cluster, deployment.stack.dead_letters()


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_event_is_a_dead_letter_and_an_error_that_names_it(with_malformed_events, name):
    """FunctionGraph stores the whole event, after three repetitions."""
    function, event, problem = MALFORMED[name]
    cluster, letters = with_malformed_events
    mine = [letter for letter in letters if letter["request_payload"] == event]
    errors = [
        f"{line['message']} {line['to_do']}" for line in cluster.logs if line["level"] == "ERROR" and "to_do" in line
    ]

    assert [letter["request_context"]["function_urn"].split(":")[6] for letter in mine] == [f"journeyman-{function}"]
    assert mine[0]["request_context"]["approximate_invoke_count"] == 4
    assert any(_matches(problem, error) for error in errors), errors


def _matches(problem, text):
    position = 0
    for part in problem.split(".*"):
        position = text.find(part, position)
        if position < 0:
            return False
    return True


def test_good_messages_go_on_beside_malformed_events(with_malformed_events):
    """Only the malformed ones are dead letters, and every other invocation succeeded; the sweep's timer has none."""
    cluster, letters = with_malformed_events
    malformed = [event for _, event, _ in MALFORMED.values()]
    failed = [
        invocation.event
        for function in cluster.deployment.functions
        for invocation in function.invocations
        if invocation.outcome is not InvocationOutcome.SUCCEEDED
    ]

    assert len(letters) == len(malformed)
    assert cluster.running() == 3
    assert [event for event in failed if event not in malformed] == [
        sample("timer/minute-sweep.json", user_event="not JSON")
    ]
