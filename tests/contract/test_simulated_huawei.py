"""The simulated Huawei Cloud account behaves like CCE and ECS: nodes, jobs, stock, quotas, Spot, events, reads.

Most tests run over HTTP with the official SDK and in process, and state the services' behaviour.
"""

from datetime import timedelta

import pytest

from journeyman.cloud.huawei.rest_api import RestApiError, RestCall
from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.huawei_account.ecs_servers import server_id_of
from tests.contract.official_huawei_sdk import cce_call, node_body, project_call, refused
from tests.helpers.small_clusters import table

ZONE = "cn-north-4a"
SPOT = {"marketType": "spot"}
GONE = ("CCE.01404001", 404)


class Cluster:
    """The operations of CCE and ECS on a seeded cluster, and the passing of time."""

    def __init__(self, rest_api, cce, huawei, clock):
        self.rest_api, self.cce, self.huawei, self.clock = rest_api, cce, huawei, clock

    def create(self, **changes):
        return self.rest_api(cce_call(self.cce, "CreateNode", "POST", body=node_body(self.cce, **changes)))

    def uid(self, **changes):
        """Create a node, and return its id."""
        return self.create(**changes)["metadata"]["uid"]

    def show(self, uid):
        return self.rest_api(cce_call(self.cce, "ShowNode", path=f"nodes/{uid}"))

    def status(self, uid):
        return self.show(uid)["status"]

    def delete(self, uid):
        return self.rest_api(cce_call(self.cce, "DeleteNode", "DELETE", path=f"nodes/{uid}"))

    def nodes(self, **query):
        return self.rest_api(cce_call(self.cce, "ListNodes", **query))

    def job(self, job_id):
        path = f"/api/v3/projects/{self.cce.project_id}/jobs/{job_id}"
        return self.rest_api(RestCall(service="cce", operation="ShowJob", method="GET", path=path))

    def servers(self, **query):
        return self.rest_api(project_call(self.cce, "ecs", "ListServersDetails", "cloudservers/detail", **query))

    def settle(self, seconds):
        self.clock.advance(seconds)
        self.huawei.act()


@pytest.fixture
def cluster(rest_api, cce, huawei, clock):
    return Cluster(rest_api, cce, huawei, clock)


@pytest.fixture
def traces(huawei):
    """Return the names of the traces of servers, as they are published."""
    names = []
    huawei.events.subscribers.append(lambda event: names.append(event["cts"]["trace_name"]))
    return names


# --- nodes and jobs ----------------------------------------------------------------------------------------------------


def test_node_goes_from_build_to_active_with_its_server(cluster, traces):
    """Its server has an id, an address, tags and a trace as soon as it runs."""
    created = cluster.create()
    uid = created["metadata"]["uid"]
    assert "phase" not in created["status"]
    assert cluster.status(uid)["phase"] == "Build"
    assert "serverId" not in cluster.status(uid)
    assert cluster.servers(tags="karpenter-nodepool=default")["count"] == 0
    cluster.settle(6)
    status = cluster.status(uid)
    assert (status["phase"], status["privateIP"]) == ("Installing", "10.0.0.2")
    (server,) = cluster.servers(tags="karpenter-nodepool=default")["servers"]
    assert (server["id"], server["status"]) == (status["serverId"], "ACTIVE")
    assert server["tags"] == ["karpenter-nodepool=default"]
    cluster.settle(30)
    assert cluster.status(uid)["phase"] == "Active"
    assert traces == ["createServer"]


def test_answers_lack_labels_tags_taints_and_passwords(cluster):
    """CCE's reads have the rest of the request, the offloading included."""
    hashed = "JDYkc2FsdCRoYXNo"  # $6$salt$hash
    spec = cluster.show(cluster.uid(login={"userPassword": {"username": "root", "password": hashed}}))["spec"]
    assert not {"k8sTags", "userTags", "taints"} & set(spec)
    assert spec["offloadNode"] is True
    assert spec["login"]["userPassword"]["password"] == "******"


def test_job_names_the_node_in_its_server_sub_job_only(cluster):
    """The sub-jobs of a sub-job are read by its id."""
    created = cluster.create()
    top = cluster.job(created["status"]["jobID"])
    (creation,) = top["spec"]["subJobs"]
    assert creation["spec"]["type"] == "CreateNode"
    assert "subJobs" not in creation["spec"]
    parts = {each["spec"]["type"]: each for each in cluster.job(creation["metadata"]["uid"])["spec"]["subJobs"]}
    assert parts["CreateNodeVM"]["spec"]["resourceID"] == created["metadata"]["uid"]
    assert top["spec"]["resourceID"] != created["metadata"]["uid"]
    cluster.settle(60)
    assert cluster.job(created["status"]["jobID"])["status"]["phase"] == "Success"


def test_equal_names_make_two_nodes(cluster):
    """CreateNode has no token against repetitions. A node without a name has the cluster's, with a unique end."""
    assert cluster.uid(name="same") != cluster.uid(name="same")
    assert [node["metadata"]["name"] for node in cluster.nodes()["items"]] == ["same", "same"]
    call = cce_call(cluster.cce, "CreateNode", "POST", body={**node_body(cluster.cce), "metadata": {}})
    first, second = (cluster.rest_api(call)["metadata"]["name"].rpartition("-") for _ in range(2))
    assert first[0] == second[0] == "demo"
    assert first != second


def test_nodes_are_listed_in_pages(cluster):
    """The last page has no marker of a next one."""
    uids = [cluster.uid(name=f"n{number}") for number in range(3)]
    first = cluster.nodes(limit=2)
    assert first["pageInfo"] == {"currentCount": 2, "nextMarker": uids[1]}
    second = cluster.nodes(limit=2, marker=uids[1])
    assert second["pageInfo"] == {"currentCount": 1}
    assert [node["metadata"]["uid"] for node in [*first["items"], *second["items"]]] == uids
    assert refused(cluster.nodes, limit=2001) == ("CCE.01400001", 400)


@pytest.mark.parametrize("age", [0, 6, 60], ids=["build", "installing", "active"])
def test_deleted_node_ends_in_not_found(cluster, age, huawei, cce):
    """Its phase is the earlier one in the answer, then Deleting; its address is free again."""
    free = huawei.network.subnets[cce.subnets["demo"]].free
    uid = cluster.uid()
    cluster.settle(age)
    before, answer = cluster.status(uid), cluster.delete(uid)["status"]
    assert answer["phase"] == before["phase"]
    assert answer["jobID"] != before["jobID"]
    assert cluster.status(uid)["phase"] == "Deleting"
    assert cluster.delete(uid)["status"]["jobID"] == answer["jobID"]  # a repetition has no effect
    cluster.settle(13)
    assert refused(cluster.show, uid) == refused(cluster.delete, uid) == GONE
    assert cluster.servers()["count"] == 0
    assert huawei.network.subnets[cce.subnets["demo"]].free == free


def test_node_is_not_found_in_another_cluster(cluster, rest_api, cce, huawei):
    """Nodes belong to one cluster."""
    uid = cluster.uid()
    path = f"/api/v3/projects/{cce.project_id}/clusters/{huawei.clusters.add(name='other').id}/nodes"
    call = RestCall(service="cce", operation="ShowNode", method="GET", path=f"{path}/{uid}")
    assert refused(rest_api, call) == GONE
    assert rest_api(RestCall(service="cce", operation="ListNodes", method="GET", path=path))["items"] == []


def test_cluster_shows_its_network_and_version(rest_api, cce):
    """The network is that of the seeded VPC."""
    spec = rest_api(cce_call(cce, "ShowCluster", path=""))["spec"]
    assert (spec["version"], spec["containerNetwork"]["mode"]) == ("v1.33", "vpc-router")
    assert (spec["hostNetwork"]["vpc"], spec["category"]) == (cce.vpc, "CCE")


# --- stock, quotas, addresses --------------------------------------------------------------------------------------------


def test_pool_without_stock_refuses_nodes_until_a_time(cluster, huawei, clock):
    """Other zones and capacity types are not affected."""
    huawei.out_of_stock("c7.large.2", ZONE, "on-demand", clock.now() + timedelta(minutes=5))
    assert refused(cluster.create) == ("CCE.01400021", 400)
    assert cluster.create(zone="cn-north-4b")["status"]["jobID"]
    assert cluster.create(extend=SPOT)["status"]["jobID"]
    cluster.settle(301)
    assert cluster.create()["status"]["jobID"]


def test_pool_without_stock_can_fail_in_the_job(cluster, huawei, clock):
    """CreateNode accepts the node, which later is in phase Error, and stays until it is deleted."""
    huawei.fails_in_job("c7.large.2", ZONE, "on-demand", clock.now() + timedelta(minutes=5))
    created = cluster.create()
    uid, job_id = created["metadata"]["uid"], created["status"]["jobID"]
    assert cluster.job(job_id)["status"]["phase"] == "Running"
    cluster.settle(6)
    failed = cluster.job(job_id)
    assert failed["status"]["phase"] == "Failed"
    assert "Ecs.0319" in failed["status"]["reason"]
    (creation,) = failed["spec"]["subJobs"]
    parts = cluster.job(creation["metadata"]["uid"])["spec"]["subJobs"]
    assert [part["status"]["phase"] for part in parts] == ["Failed", "Initializing"]
    assert cluster.status(uid)["phase"] == "Error"
    assert "serverId" not in cluster.status(uid)
    assert cluster.servers()["count"] == 0
    cluster.delete(uid)
    cluster.settle(13)
    assert refused(cluster.show, uid) == GONE


@table(
    "quota", "value", "code",
    servers=("servers", 1, "CCE.01400008"),
    vcpus=("vcpus", 3, "CCE.01400009"),
    memory=("memory_mib", 8191, "CCE.01400010"),
    disks=("disks", 3, "CCE.01400013"),
    cluster=("most_nodes", 1, "CCE.01400014"),
)  # fmt: skip
def test_quota_refuses_the_node_that_exceeds_it(cluster, huawei, cce, quota, value, code):
    """Nodes within the quota of the account, and within the cluster's scale, are created."""
    limits = huawei.clusters.known[cce.cluster_id] if quota == "most_nodes" else huawei.nodes.quotas
    setattr(limits, quota, value)
    cluster.create()
    assert refused(cluster.create) == (code, 400)


def test_subnet_without_addresses_refuses_nodes(cluster, huawei, cce):
    """The message says so; another subnet has addresses. The resources of an account in arrears are restricted."""
    huawei.set_free_addresses(cce.subnets["demo"], 1)
    cluster.create()
    with pytest.raises(RestApiError, match="No more IP addresses available"):
        cluster.create()
    other = {"primaryNic": {"subnetId": cce.subnets["demo-2"]}}
    assert cluster.uid(nodeNicSpec=other)
    huawei.in_arrears = True
    assert refused(cluster.create, nodeNicSpec=other) == ("CCE.01403001", 403)


def test_turbo_cluster_needs_flavors_with_sub_interfaces(rest_api, cce, huawei):
    """A flavor without a quota of sub-interfaces is unfit there."""
    turbo = huawei.clusters.add(name="turbo", network_mode="eni")
    path = f"/api/v3/projects/{cce.project_id}/clusters/{turbo.id}/nodes"

    def create(flavor):
        body = node_body(cce, flavor=flavor)
        return rest_api(RestCall(service="cce", operation="CreateNode", method="POST", path=path, body=body))

    assert refused(create, "s6.large.2") == ("CCE.01400025", 400)
    assert create("c9.large.4")["metadata"]["uid"]


# --- Spot and what happens to servers ------------------------------------------------------------------------------------


def test_spot_price_must_be_between_market_and_on_demand_price(cluster, huawei):
    """Without a price, the on-demand price is the limit."""
    market, on_demand = (huawei.prices.price("c7.large.2", ZONE, kind) for kind in ("spot", "on-demand"))
    for price in (market * 0.9, on_demand * 1.1):
        assert refused(cluster.create, extend={**SPOT, "spotPrice": f"{price:.4f}"}) == ("CCE.01400001", 400)
    assert cluster.uid(extend={**SPOT, "spotPrice": f"{market:.4f}"})
    assert cluster.uid(extend=SPOT)


def test_reclaimed_spot_server_is_gone_after_five_minutes(cluster, huawei, traces):
    """In the meantime, neither the node nor the server can be deleted; afterwards CCE has no node."""
    uid = cluster.uid(extend=SPOT)
    cluster.settle(60)
    server_id = cluster.status(uid)["serverId"]
    huawei.interrupt(server_id)
    huawei.interrupt(server_id)  # has no further effect
    assert refused(cluster.delete, uid)[1] == 429  # the SDK does not read the code of this status
    with pytest.raises(ServiceError):
        huawei.terminate(server_id)
    cluster.settle(299)
    assert cluster.status(uid)["phase"] == "Active"
    cluster.settle(2)
    assert refused(cluster.show, uid) == GONE
    assert cluster.servers()["count"] == 0
    assert traces == ["createServer", "interruptServer", "deleteServer"]


def test_only_running_spot_servers_are_reclaimed(cluster, huawei):
    """An on-demand server is not, and a Spot server not before it runs."""
    spot, on_demand = cluster.uid(extend=SPOT), cluster.uid()
    with pytest.raises(ConfigurationError):
        huawei.interrupt(server_id_of(spot))
    cluster.settle(6)
    huawei.interrupt(server_id_of(spot))
    with pytest.raises(ConfigurationError):
        huawei.interrupt(server_id_of(on_demand))


def test_trace_has_the_shape_of_a_cts_trigger(cluster, huawei):
    """A reclaim is a system action on a `server`, a deletion an API call on an `ecs`."""
    events = []
    huawei.events.subscribers.append(events.append)
    server_id = server_id_of(cluster.uid(extend=SPOT))
    cluster.settle(60)
    huawei.interrupt(server_id)
    trace = events[-1]["cts"]
    kind = {"service_type": "ECS", "resource_type": "server", "trace_type": "SystemAction"}
    assert trace.items() >= {**kind, "resource_id": server_id, "code": 200}.items()
    assert trace["user"]["domain"]["id"] == huawei.domain_id
    assert events[0]["cts"]["resource_type"] == "ecs"


def test_node_outlives_its_deleted_server(cluster, huawei, traces):
    """A user deletes the server, once it exists; the node is Abnormal until it is deleted, too."""
    uid = cluster.uid()
    assert server_id_of(uid) in huawei.instances.known  # the record of the account has it already
    with pytest.raises(ServiceError, match="could not be found"):
        huawei.terminate(server_id_of(uid))
    cluster.settle(60)
    huawei.terminate(server_id_of(uid))
    assert cluster.servers()["count"] == 0
    assert cluster.status(uid)["phase"] == "Abnormal"
    cluster.delete(uid)
    cluster.settle(13)
    assert refused(cluster.show, uid) == GONE
    assert traces == ["createServer", "deleteServer"]


def test_stopped_server_makes_its_node_abnormal(cluster, huawei, traces):
    """ECS shows it as SHUTOFF; it can start again."""
    uid = cluster.uid()
    cluster.settle(60)
    huawei.stop(server_id_of(uid))
    cluster.settle(6)
    assert cluster.servers()["servers"][0]["status"] == "SHUTOFF"
    assert cluster.status(uid)["phase"] == "Abnormal"
    huawei.start(server_id_of(uid))
    assert cluster.status(uid)["phase"] == "Active"
    assert traces == ["createServer", "stopServer", "startServer"]


def test_tags_of_servers_are_edited_and_listed(cluster, huawei):
    """A user edits them in the console."""
    server_id = server_id_of(cluster.uid())
    cluster.settle(6)
    huawei.set_tags(server_id, {"team": "a"})
    found = cluster.servers(tags="team=a,karpenter-nodepool=default")["servers"]
    assert [each["id"] for each in found] == [server_id]
    huawei.remove_tags(server_id, "team")
    assert cluster.servers(tags="team=a")["servers"] == []


def test_servers_are_listed_by_page_number_or_by_id(cluster):
    """Ids void the other filters."""
    ids = [server_id_of(cluster.uid()) for _ in range(3)]
    cluster.settle(6)
    pages = [cluster.servers(limit=2, offset=page) for page in (1, 2, 3)]
    assert [[each["id"] for each in page["servers"]] for page in pages] == [ids[:2], ids[2:], []]
    assert pages[0]["count"] == 3
    named = cluster.servers(server_id=f"{ids[1]},unknown", tags="no=thing")["servers"]
    assert [each["id"] for each in named] == [ids[1]]
    assert refused(cluster.servers, server_id=",".join(["x"] * 101)) == ("Ecs.0005", 400)
    assert refused(cluster.servers, limit=1001) == ("Ecs.0005", 400)


def test_scheduled_event_is_listed_and_carried_out(cluster, huawei):
    """One that waits for the user's consent is not carried out without it."""
    server_id = server_id_of(cluster.uid())
    cluster.settle(60)
    stop = huawei.schedule_maintenance(server_id, "instance-stop", timedelta(hours=1))
    asks = huawei.schedule_maintenance(server_id, state="inquiring")

    def listed(**query):
        call = project_call(cluster.cce, "ecs", "ListScheduledEvents", "instance-scheduled-events", "v3", **query)
        answer = cluster.rest_api(call)
        return answer["page_info"], {event["id"]: event for event in answer["events"]}

    event = listed(instance_id=server_id)[1][stop]
    assert (event["state"], event["not_before"]) == ("scheduled", "2026-11-02T09:01:00Z")
    assert listed(limit=1)[0] == {"next_marker": stop}
    assert [*listed(limit=1, marker=stop)[1]] == [asks]
    cluster.settle(3600)
    assert cluster.servers()["servers"][0]["status"] == "SHUTOFF"
    assert [*listed(state="completed")[1]] == [stop]
    huawei.cancel_maintenance(asks)
    assert [*listed(state="canceled,inquiring")[1]] == [asks]


def test_lists_of_servers_can_lag_behind(cluster, huawei, clock, cce):
    """So can ListNodes, for a caller with an old view; a single node is read as it is."""
    cluster.create()
    cluster.settle(6)
    before = Cluster(huawei.rest_api().as_of(clock.now() - timedelta(seconds=2)), cce, huawei, clock)
    assert before.servers()["count"] == 0
    (node,) = before.nodes()["items"]
    assert node["status"]["phase"] == "Build"
    assert "serverId" not in node["status"]
    assert cluster.servers()["count"] == 1
    huawei.list_lag_seconds = 2
    assert cluster.servers()["count"] == 0
    cluster.settle(2)
    assert cluster.servers()["count"] == 1


# --- faults of requests ---------------------------------------------------------------------------------------------------


def test_injected_errors_have_no_effect(cluster, huawei):
    """The request after them succeeds."""
    huawei.fail_next("CreateNode", "CCE.01500001", times=2)
    assert [refused(cluster.create) for _ in range(2)] == [("CCE.01500001", 500)] * 2
    assert cluster.nodes()["items"] == []
    assert cluster.uid()
    assert huawei.calls() == {"cce CreateNode": 3, "cce ListNodes": 1}


def test_lost_answer_takes_effect(cluster, huawei):
    """The caller gets no code and no status."""
    huawei.lose_next_answer("CreateNode")
    with pytest.raises(RestApiError) as caught:
        cluster.create()
    assert (caught.value.code, caught.value.status) == ("", 0)
    assert len(cluster.nodes()["items"]) == 1


def test_requests_beyond_a_rate_are_throttled(cluster, huawei, clock):
    """A minute later, requests succeed again."""
    huawei.limit_rate("ListNodes", 2)
    cluster.nodes(), cluster.nodes()
    assert refused(cluster.nodes)[1] == 429
    clock.advance(60)
    assert cluster.nodes()["kind"] == "List"


def test_denied_action_is_refused(cluster, huawei):
    """The error names the action."""
    huawei.deny("cce:node:create")
    with pytest.raises(RestApiError, match="cce:node:create") as caught:
        cluster.create()
    assert (caught.value.code, caught.value.status) == ("CCE.01403001", 403)
    huawei.allow("cce:node:create")
    assert cluster.uid()


def test_observers_see_launch_deletion_and_states(cluster, huawei):
    """The record of a server has its tags and its node from the launch on."""
    seen = []
    huawei.instances.observers.append(lambda e: seen.append((e.what, e.instance.tags, e.instance.node_id)))
    uid = cluster.uid()
    cluster.settle(60)
    cluster.delete(uid)
    cluster.settle(60)
    assert [what for what, _, _ in seen] == ["launched", "BUILD", "ACTIVE", "deletion-requested", "DELETED"]
    assert seen[0][1:] == ({"karpenter-nodepool": "default"}, uid)


def test_account_acts_when_a_change_is_due(cluster, huawei, clock):
    """`due` names the next change, and `act` makes it."""
    assert huawei.due() is None
    cluster.create()
    assert huawei.due() == clock.now() + timedelta(seconds=5)
    assert not huawei.act()
    clock.advance(5)
    assert huawei.act()
