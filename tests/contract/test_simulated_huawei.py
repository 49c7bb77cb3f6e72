"""The simulated Huawei Cloud account behaves like CCE and ECS: nodes, jobs, stock, quotas, Spot, events, reads.

Most tests run over HTTP with the official SDK and in process, and state the services' behaviour.
"""

from datetime import timedelta

import pytest

from journeyman.cloud.huawei.rest_api import RestApiError, RestCall
from journeyman.errors import ConfigurationError
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.huawei_account.ecs_servers import server_id_of
from tests.contract.official_huawei_sdk import cce_call, node_body, project_call

ZONE = "cn-north-4a"
SPOT = {"marketType": "spot"}


@pytest.fixture
def create(rest_api, cce):
    """Return a function that creates a node, and returns the answer."""
    return lambda **changes: rest_api(cce_call(cce, "CreateNode", "POST", body=node_body(cce, **changes)))


@pytest.fixture
def show(rest_api, cce):
    """Return a function that shows a node."""
    return lambda uid: rest_api(cce_call(cce, "ShowNode", path=f"nodes/{uid}"))


@pytest.fixture
def delete(rest_api, cce):
    """Return a function that deletes a node, and returns the answer."""
    return lambda uid: rest_api(cce_call(cce, "DeleteNode", "DELETE", path=f"nodes/{uid}"))


@pytest.fixture
def job(rest_api, cce):
    """Return a function that shows a job."""

    def shown(job_id):
        path = f"/api/v3/projects/{cce.project_id}/jobs/{job_id}"
        return rest_api(RestCall(service="cce", operation="ShowJob", method="GET", path=path))

    return shown


@pytest.fixture
def servers(rest_api, cce):
    """Return a function that lists servers."""
    return lambda **query: rest_api(project_call(cce, "ecs", "ListServersDetails", "cloudservers/detail", **query))


@pytest.fixture
def traces(huawei):
    """Return the names of the traces of servers, as they are published."""
    names = []
    huawei.events.subscribers.append(lambda event: names.append(event["cts"]["trace_name"]))
    return names


@pytest.fixture
def settle(huawei, clock):
    """Return a function that lets some seconds pass."""

    def passing(seconds):
        clock.advance(seconds)
        huawei.act()

    return passing


def refused(call, *arguments, **parameters):
    """Return the code and status of the error of a call."""
    with pytest.raises(RestApiError) as caught:
        call(*arguments, **parameters)
    assert caught.value.message
    return caught.value.code, caught.value.status


# --- nodes and jobs ----------------------------------------------------------------------------------------------------


def test_node_goes_from_build_to_active_with_its_server(create, show, servers, settle, traces):
    """Its server has an id, an address, tags and a trace as soon as it runs."""
    created = create()
    uid = created["metadata"]["uid"]
    assert "phase" not in created["status"]
    assert show(uid)["status"]["phase"] == "Build"
    assert "serverId" not in show(uid)["status"]
    assert servers(tags="karpenter-nodepool=default")["count"] == 0
    settle(6)
    status = show(uid)["status"]
    assert (status["phase"], status["privateIP"]) == ("Installing", "10.0.0.2")
    (server,) = servers(tags="karpenter-nodepool=default")["servers"]
    assert (server["id"], server["status"], server["tags"]) == (
        status["serverId"],
        "ACTIVE",
        ["karpenter-nodepool=default"],
    )
    settle(30)
    assert show(uid)["status"]["phase"] == "Active"
    assert traces == ["createServer"]


def test_answers_lack_labels_tags_taints_and_passwords(create, show):
    """CCE's reads have the rest of the request, the offloading included."""
    hashed = "JDYkc2FsdCRoYXNo"  # $6$salt$hash
    uid = create(login={"userPassword": {"username": "root", "password": hashed}})["metadata"]["uid"]
    spec = show(uid)["spec"]
    assert not {"k8sTags", "userTags", "taints"} & set(spec)
    assert spec["offloadNode"] is True
    assert spec["login"]["userPassword"]["password"] == "******"


def test_job_names_the_node_in_its_server_sub_job_only(create, job, settle):
    """The sub-jobs of a sub-job are read by its id."""
    created = create()
    top = job(created["status"]["jobID"])
    (creation,) = top["spec"]["subJobs"]
    assert creation["spec"]["type"] == "CreateNode"
    assert "subJobs" not in creation["spec"]
    parts = {each["spec"]["type"]: each for each in job(creation["metadata"]["uid"])["spec"]["subJobs"]}
    assert parts["CreateNodeVM"]["spec"]["resourceID"] == created["metadata"]["uid"]
    assert top["spec"]["resourceID"] != created["metadata"]["uid"]
    settle(60)
    assert job(created["status"]["jobID"])["status"]["phase"] == "Success"


def test_equal_names_make_two_nodes(create, rest_api, cce):
    """CreateNode has no token that makes a repetition harmless."""
    first, second = create(name="same"), create(name="same")
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    names = [node["metadata"]["name"] for node in rest_api(cce_call(cce, "ListNodes"))["items"]]
    assert names == ["same", "same"]


def test_node_without_name_is_named_after_the_cluster(rest_api, cce):
    """The rest of the name is unique."""
    body = {**node_body(cce), "metadata": {}}
    names = [
        rest_api(cce_call(cce, "CreateNode", "POST", body=body))["metadata"]["name"].rpartition("-") for _ in range(2)
    ]
    assert [name[0] for name in names] == ["demo", "demo"]
    assert names[0] != names[1]


def test_nodes_are_listed_in_pages(create, rest_api, cce):
    """The last page has no marker of a next one."""
    uids = [create(name=f"n{number}")["metadata"]["uid"] for number in range(3)]
    first = rest_api(cce_call(cce, "ListNodes", limit=2))
    assert first["pageInfo"] == {"currentCount": 2, "nextMarker": uids[1]}
    second = rest_api(cce_call(cce, "ListNodes", limit=2, marker=first["pageInfo"]["nextMarker"]))
    assert second["pageInfo"] == {"currentCount": 1}
    assert [node["metadata"]["uid"] for node in [*first["items"], *second["items"]]] == uids
    assert refused(rest_api, cce_call(cce, "ListNodes", limit=2001)) == ("CCE.01400001", 400)


@pytest.mark.parametrize("age", [0, 6, 60], ids=["build", "installing", "active"])
def test_deleted_node_ends_in_not_found(create, show, delete, servers, settle, age, huawei, cce):
    """Its phase is the earlier one in the answer, then Deleting; its address is free again."""
    free = huawei.network.subnets[cce.subnets["demo"]].free
    uid = create()["metadata"]["uid"]
    settle(age)
    before = show(uid)["status"]
    answer = delete(uid)["status"]
    assert answer["phase"] == before["phase"]
    assert answer["jobID"] != before["jobID"]
    assert show(uid)["status"]["phase"] == "Deleting"
    assert delete(uid)["status"]["jobID"] == answer["jobID"]  # a repetition has no effect
    settle(13)
    assert refused(show, uid) == ("CCE.01404001", 404)
    assert refused(delete, uid) == ("CCE.01404001", 404)
    assert servers()["count"] == 0
    assert huawei.network.subnets[cce.subnets["demo"]].free == free


def test_node_is_not_found_in_another_cluster(create, rest_api, cce, huawei):
    """Nodes belong to one cluster."""
    uid = create()["metadata"]["uid"]
    other = huawei.clusters.add(name="other")
    path = f"/api/v3/projects/{cce.project_id}/clusters/{other.id}/nodes"
    call = RestCall(service="cce", operation="ShowNode", method="GET", path=f"{path}/{uid}")
    assert refused(rest_api, call) == ("CCE.01404001", 404)
    assert rest_api(RestCall(service="cce", operation="ListNodes", method="GET", path=path))["items"] == []


def test_cluster_shows_its_network_and_version(rest_api, cce):
    """The network is that of the seeded VPC."""
    spec = rest_api(cce_call(cce, "ShowCluster", path=""))["spec"]
    assert (spec["version"], spec["containerNetwork"]["mode"]) == ("v1.33", "vpc-router")
    assert (spec["hostNetwork"]["vpc"], spec["category"]) == (cce.vpc, "CCE")


# --- stock, quotas, addresses --------------------------------------------------------------------------------------------


def test_pool_without_stock_refuses_nodes_until_a_time(create, huawei, clock, settle):
    """Other zones and capacity types are not affected."""
    huawei.out_of_stock("c7.large.2", ZONE, "on-demand", clock.now() + timedelta(minutes=5))
    assert refused(create) == ("CCE.01400021", 400)
    assert create(zone="cn-north-4b")["status"]["jobID"]
    assert create(extend=SPOT)["status"]["jobID"]
    settle(301)
    assert create()["status"]["jobID"]


def test_pool_without_stock_can_fail_in_the_job(create, show, job, delete, servers, huawei, clock, settle):
    """CreateNode accepts the node, which later is in phase Error, and stays until it is deleted."""
    huawei.fails_in_job("c7.large.2", ZONE, "on-demand", clock.now() + timedelta(minutes=5))
    created = create()
    uid, job_id = created["metadata"]["uid"], created["status"]["jobID"]
    assert job(job_id)["status"]["phase"] == "Running"
    settle(6)
    failed = job(job_id)["status"]
    assert failed["phase"] == "Failed"
    assert "Ecs.0319" in failed["reason"]
    (creation,) = job(job_id)["spec"]["subJobs"]
    parts = job(creation["metadata"]["uid"])["spec"]["subJobs"]
    assert [part["status"]["phase"] for part in parts] == ["Failed", "Initializing"]
    assert show(uid)["status"]["phase"] == "Error"
    assert "serverId" not in show(uid)["status"]
    assert servers()["count"] == 0
    delete(uid)
    settle(13)
    assert refused(show, uid) == ("CCE.01404001", 404)


@pytest.mark.parametrize(
    ("quotas", "code"),
    [
        ({"servers": 1}, "CCE.01400008"),
        ({"vcpus": 3}, "CCE.01400009"),
        ({"memory_mib": 8191}, "CCE.01400010"),
        ({"disks": 3}, "CCE.01400013"),
    ],
)
def test_quota_refuses_the_node_that_exceeds_it(create, huawei, quotas, code):
    """Nodes within the quota are created."""
    for name, value in quotas.items():
        setattr(huawei.nodes.quotas, name, value)
    create()
    assert refused(create) == (code, 400)


def test_full_cluster_refuses_nodes(create, huawei, cce):
    """A cluster's scale limits its nodes."""
    huawei.clusters.known[cce.cluster_id].most_nodes = 1
    create()
    assert refused(create) == ("CCE.01400014", 400)


def test_subnet_without_addresses_refuses_nodes(create, huawei, cce):
    """The message says so; another subnet has addresses."""
    huawei.set_free_addresses(cce.subnets["demo"], 1)
    create()
    with pytest.raises(RestApiError, match="No more IP addresses available"):
        create()
    other = {"primaryNic": {"subnetId": cce.subnets["demo-2"]}}
    assert create(nodeNicSpec=other)["metadata"]["uid"]


def test_account_in_arrears_refuses_nodes(create, huawei):
    """Its resources are restricted."""
    huawei.in_arrears = True
    assert refused(create) == ("CCE.01403001", 403)


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


def test_spot_price_must_be_between_market_and_on_demand_price(create, huawei):
    """Without a price, the on-demand price is the limit."""
    market = huawei.prices.price("c7.large.2", ZONE, "spot")
    on_demand = huawei.prices.price("c7.large.2", ZONE, "on-demand")
    assert refused(create, extend={**SPOT, "spotPrice": f"{market * 0.9:.4f}"}) == ("CCE.01400001", 400)
    assert refused(create, extend={**SPOT, "spotPrice": f"{on_demand * 1.1:.4f}"}) == ("CCE.01400001", 400)
    assert create(extend={**SPOT, "spotPrice": f"{market:.4f}"})["metadata"]["uid"]
    assert create(extend=SPOT)["metadata"]["uid"]


def test_reclaimed_spot_server_is_gone_after_five_minutes(create, show, delete, servers, huawei, settle, traces):
    """In the meantime, neither the node nor the server can be deleted; afterwards CCE has no node."""
    uid = create(extend=SPOT)["metadata"]["uid"]
    settle(60)
    server_id = show(uid)["status"]["serverId"]
    huawei.interrupt(server_id)
    huawei.interrupt(server_id)  # has no further effect
    assert refused(delete, uid)[1] == 429  # the SDK does not read the code of this status
    with pytest.raises(ServiceError):
        huawei.terminate(server_id)
    settle(299)
    assert show(uid)["status"]["phase"] == "Active"
    settle(2)
    assert refused(show, uid) == ("CCE.01404001", 404)
    assert servers()["count"] == 0
    assert traces == ["createServer", "interruptServer", "deleteServer"]


def test_only_running_spot_servers_are_reclaimed(create, huawei, settle):
    """An on-demand server is not, and a Spot server not before it runs."""
    spot = create(extend=SPOT)["metadata"]["uid"]
    on_demand = create()["metadata"]["uid"]
    with pytest.raises(ConfigurationError):
        huawei.interrupt(server_id_of(spot))
    settle(6)
    huawei.interrupt(server_id_of(spot))
    with pytest.raises(ConfigurationError):
        huawei.interrupt(server_id_of(on_demand))


def test_trace_has_the_shape_of_a_cts_trigger(create, huawei, settle):
    """A reclaim is a system action on a `server`, a deletion an API call on an `ecs`."""
    events = []
    huawei.events.subscribers.append(events.append)
    uid = create(extend=SPOT)["metadata"]["uid"]
    settle(60)
    huawei.interrupt(server_id_of(uid))
    trace = events[-1]["cts"]
    assert {name: trace[name] for name in ("service_type", "resource_type", "trace_type", "resource_id", "code")} == {
        "service_type": "ECS",
        "resource_type": "server",
        "trace_type": "SystemAction",
        "resource_id": server_id_of(uid),
        "code": 200,
    }
    assert trace["user"]["domain"]["id"] == huawei.domain_id
    assert events[0]["cts"]["resource_type"] == "ecs"


def test_node_outlives_its_deleted_server(create, show, delete, servers, huawei, settle, traces):
    """A user deletes the server; the node is Abnormal until it is deleted, too."""
    uid = create()["metadata"]["uid"]
    settle(60)
    huawei.terminate(server_id_of(uid))
    assert servers()["count"] == 0
    assert show(uid)["status"]["phase"] == "Abnormal"
    delete(uid)
    settle(13)
    assert refused(show, uid) == ("CCE.01404001", 404)
    assert traces == ["createServer", "deleteServer"]


def test_stopped_server_makes_its_node_abnormal(create, show, servers, huawei, settle, traces):
    """ECS shows it as SHUTOFF; it can start again."""
    uid = create()["metadata"]["uid"]
    settle(60)
    huawei.stop(server_id_of(uid))
    settle(6)
    assert servers()["servers"][0]["status"] == "SHUTOFF"
    assert show(uid)["status"]["phase"] == "Abnormal"
    huawei.start(server_id_of(uid))
    assert show(uid)["status"]["phase"] == "Active"
    assert traces == ["createServer", "stopServer", "startServer"]


def test_server_cannot_be_changed_before_it_exists(create, huawei):
    """The record of the account has it already."""
    uid = create()["metadata"]["uid"]
    assert server_id_of(uid) in huawei.instances.known
    with pytest.raises(ServiceError, match="could not be found"):
        huawei.terminate(server_id_of(uid))


def test_tags_of_servers_are_edited_and_listed(create, servers, huawei, settle):
    """A user edits them in the console."""
    server_id = server_id_of(create()["metadata"]["uid"])
    settle(6)
    huawei.set_tags(server_id, {"team": "a"})
    assert [each["id"] for each in servers(tags="team=a,karpenter-nodepool=default")["servers"]] == [server_id]
    huawei.remove_tags(server_id, "team")
    assert servers(tags="team=a")["servers"] == []


def test_servers_are_listed_by_page_number_or_by_id(create, servers, settle):
    """Ids void the other filters."""
    ids = [server_id_of(create()["metadata"]["uid"]) for _ in range(3)]
    settle(6)
    pages = [servers(limit=2, offset=page) for page in (1, 2, 3)]
    assert [[each["id"] for each in page["servers"]] for page in pages] == [ids[:2], ids[2:], []]
    assert pages[0]["count"] == 3
    assert [each["id"] for each in servers(server_id=f"{ids[1]},unknown", tags="no=thing")["servers"]] == [ids[1]]
    assert refused(servers, server_id=",".join(["x"] * 101)) == ("Ecs.0005", 400)
    assert refused(servers, limit=1001) == ("Ecs.0005", 400)


def test_scheduled_event_is_listed_and_carried_out(create, rest_api, cce, huawei, servers, settle):
    """One that waits for the user's consent is not carried out without it."""
    server_id = server_id_of(create()["metadata"]["uid"])
    settle(60)
    stop = huawei.schedule_maintenance(server_id, "instance-stop", timedelta(hours=1))
    asks = huawei.schedule_maintenance(server_id, state="inquiring")

    def listed(**query):
        call = project_call(cce, "ecs", "ListScheduledEvents", "instance-scheduled-events", "v3", **query)
        return rest_api(call)

    events = {event["id"]: event for event in listed(instance_id=server_id)["events"]}
    assert (events[stop]["state"], events[stop]["not_before"]) == ("scheduled", "2026-11-02T09:01:00Z")
    first = listed(limit=1)
    assert first["page_info"] == {"next_marker": stop}
    assert [event["id"] for event in listed(limit=1, marker=stop)["events"]] == [asks]
    settle(3600)
    assert servers()["servers"][0]["status"] == "SHUTOFF"
    assert [event["id"] for event in listed(state="completed")["events"]] == [stop]
    huawei.cancel_maintenance(asks)
    assert [event["id"] for event in listed(state="canceled,inquiring")["events"]] == [asks]


def test_lists_of_servers_can_lag_behind(create, servers, huawei, settle, clock, cce):
    """So can ListNodes, for a caller with an old view; a single node is read as it is."""
    create()
    settle(6)
    before = huawei.rest_api().as_of(clock.now() - timedelta(seconds=2))
    call = project_call(cce, "ecs", "ListServersDetails", "cloudservers/detail")
    assert before(call)["count"] == 0
    (node,) = before(cce_call(cce, "ListNodes"))["items"]
    assert node["status"]["phase"] == "Build"
    assert "serverId" not in node["status"]
    assert servers()["count"] == 1
    huawei.list_lag_seconds = 2
    assert servers()["count"] == 0
    settle(2)
    assert servers()["count"] == 1


# --- faults of requests ---------------------------------------------------------------------------------------------------


def test_injected_errors_have_no_effect(create, rest_api, cce, huawei):
    """The request after them succeeds."""
    huawei.fail_next("CreateNode", "CCE.01500001", times=2)
    assert [refused(create) for _ in range(2)] == [("CCE.01500001", 500)] * 2
    assert rest_api(cce_call(cce, "ListNodes"))["items"] == []
    assert create()["metadata"]["uid"]
    assert huawei.calls() == {"cce CreateNode": 3, "cce ListNodes": 1}


def test_lost_answer_takes_effect(create, rest_api, cce, huawei):
    """The caller gets no code and no status."""
    huawei.lose_next_answer("CreateNode")
    with pytest.raises(RestApiError) as caught:
        create()
    assert (caught.value.code, caught.value.status) == ("", 0)
    assert len(rest_api(cce_call(cce, "ListNodes"))["items"]) == 1


def test_requests_beyond_a_rate_are_throttled(rest_api, cce, huawei, clock):
    """A minute later, requests succeed again."""
    huawei.limit_rate("ListNodes", 2)
    call = cce_call(cce, "ListNodes")
    rest_api(call), rest_api(call)
    assert refused(rest_api, call)[1] == 429
    clock.advance(60)
    assert rest_api(call)["kind"] == "List"


def test_denied_action_is_refused(create, huawei):
    """The error names the action."""
    huawei.deny("cce:node:create")
    with pytest.raises(RestApiError, match="cce:node:create") as caught:
        create()
    assert (caught.value.code, caught.value.status) == ("CCE.01403001", 403)
    huawei.allow("cce:node:create")
    assert create()["metadata"]["uid"]


def test_observers_see_launch_deletion_and_states(create, delete, huawei, settle):
    """The record of a server has its tags and its node from the launch on."""
    seen = []
    huawei.instances.observers.append(
        lambda event: seen.append((event.what, event.instance.tags, event.instance.node_id))
    )
    uid = create()["metadata"]["uid"]
    settle(60)
    delete(uid)
    settle(60)
    assert [what for what, _, _ in seen] == ["launched", "BUILD", "ACTIVE", "deletion-requested", "DELETED"]
    assert seen[0][1:] == ({"karpenter-nodepool": "default"}, uid)


def test_account_acts_when_a_change_is_due(create, huawei, clock):
    """`due` names the next change, and `act` makes it."""
    assert huawei.due() is None
    create()
    assert huawei.due() == clock.now() + timedelta(seconds=5)
    assert not huawei.act()
    clock.advance(5)
    assert huawei.act()
