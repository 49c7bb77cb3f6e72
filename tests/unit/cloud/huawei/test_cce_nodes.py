"""CCE nodes as instances: their states, their servers, and how they are deleted."""

from datetime import datetime, timedelta, timezone

import pytest
from msgspec.structs import replace

from journeyman.cloud.huawei.cce_nodes import HuaweiInstances, parse_time
from journeyman.errors import CloudProviderError, NodeClaimNotFoundError
from tests.unit.cloud.conftest import a_claim
from tests.unit.cloud.huawei.conftest import START


@pytest.fixture
def instances(cce):
    return HuaweiInstances(cce.api, cce.settings)


def server_of(cce, node_id):
    return next(s.id for s in cce.account.instances.known.values() if s.node_id == node_id)


def running(cce, name="default-abc", **wanted):
    outcome = cce.launch(cce.node_class(), a_claim(name, **wanted))
    cce.wait(60)
    return outcome.instance.provider_id


def test_node_whose_server_a_user_deleted_is_stopped_until_it_is_deleted(cce, instances):
    """CCE keeps the node; it runs no pods any more."""
    node_id = running(cce)
    cce.account.terminate(server_of(cce, node_id))
    cce.wait(60)

    assert [(i.provider_id, i.state) for i in instances.list()] == [(node_id, "stopped")]
    assert instances.get_each([node_id])[node_id].state == "stopped"
    assert instances.delete_each([node_id]) == {}
    cce.wait(60)
    assert instances.get_each([node_id]) == {}
    assert instances.list() == ()


def test_node_without_tags_on_its_server_still_runs(cce, instances):
    """A user removed them, so the list by tag lacks the server; the node's name has the NodeClaim's UID. Events name servers."""
    node_id = running(cce)
    server = server_of(cce, node_id)
    assert instances.by_server() == {server: node_id}
    cce.account.remove_tags(server, *cce.account.instances.known[server].tags)

    [listed] = instances.list()
    assert (listed.state, listed.claim) == ("running", "")
    assert listed.provider_id == instances.by_claim_uid(["default-abc-uid"])["default-abc-uid"].provider_id


def test_nodes_of_others_are_none_of_ours(cce, instances):
    """A user created them, or a node pool of CCE."""
    running(cce)
    [created] = [call for call in cce.api.calls if call.operation == "CreateNode"]
    cce.account.rest_api()(replace(created, body={**created.body, "metadata": {"name": "by-hand"}}))

    assert len(instances.list()) == 1


def test_spot_node_that_is_reclaimed_is_deleted_later(cce, instances):
    """CCE refuses until ECS has deleted the server; the terminate step repeats the call until the node is gone."""
    node_id = running(cce, capacity_type="spot")
    cce.account.interrupt(server_of(cce, node_id))
    assert instances.delete_each([node_id]) == {}
    assert [i.provider_id for i in instances.list()] == [node_id]
    cce.wait(600)
    assert type(instances.delete_each([node_id])[node_id]) is NodeClaimNotFoundError


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-02 08:00:00.944664515 +0000 UTC", START),
        ("2026-11-02 08:00:00 +0000 UTC", START),
        ("2026-11-02T08:00:00Z", START),
        ("", datetime.fromtimestamp(0, timezone.utc)),
        ("yesterday", datetime.fromtimestamp(0, timezone.utc)),
    ],
)
def test_creation_times_are_read_to_the_second(text, time):
    """A node without a readable one counts as old, so that garbage collection does not wait for it."""
    assert parse_time(text) == time


def test_failed_node_whose_job_cce_no_longer_has_is_still_listed(cce, instances):
    """Its failure has no cause then; a job that is missing does not mean that the node is gone."""
    launched = cce.launch(cce.node_class(), a_claim()).instance
    until = cce.clock.now() + timedelta(minutes=1)
    cce.account.fails_in_job(launched.instance_type, launched.zone, "on-demand", until)
    cce.wait(60)
    cce.account.nodes.jobs.clear()

    [listed] = instances.list()
    assert (listed.provider_id, listed.failure.reason) == (launched.provider_id, "LaunchFailed")
    assert "CCE does not say why" in instances.get_each([launched.provider_id])[launched.provider_id].failure.message


def test_cluster_that_cce_does_not_have_names_the_registration(cce):
    """Of every request about it; nothing is taken for a node that is gone, or for a cluster without nodes."""
    unknown = replace(cce.settings, cluster_id="ffffffff-0000-4000-8000-000000000000")
    with pytest.raises(CloudProviderError, match="no cluster ffffffff") as caught:
        HuaweiInstances(cce.api, unknown).list()
    assert not isinstance(caught.value, NodeClaimNotFoundError)

    body = cce.node_class()
    cce.account.clusters.known.clear()
    cce.wait(3601)
    with pytest.raises(CloudProviderError, match=r"CCE has no cluster .* correct its registration") as caught:
        cce.provider.list()
    assert not isinstance(caught.value, NodeClaimNotFoundError)
    conditions = cce.provider.resolve(body, cce.clock.now())["conditions"]
    [found] = [c for c in conditions if "CCE has no cluster" in c["message"]]
    assert (found["type"], found["status"]) == ("SubnetsReady", "False")
    assert "correct its registration" in found["message"]


class Jobs:
    """An API of the jobs of a cluster, given as sub-jobs by id; the last one has the cause."""

    def __init__(self, **sub_jobs):
        self.sub_jobs = sub_jobs
        self.read = []

    def __call__(self, call):
        name = call.path.rpartition("/")[2]
        self.read.append(name)
        status = {"reason": "the flavor has no stock"} if name == "cause" else {}
        return {"spec": {"subJobs": self.sub_jobs.get(name, [])}, "status": status}


def named(name):
    return {"metadata": {"uid": name}}


@pytest.mark.parametrize(
    ("jobs", "read", "message"),
    [
        ({}, ["top"], "CCE does not say why"),
        ({"top": [{"status": {"reason": "no stock"}}]}, ["top"], "no stock"),
        (
            {"top": [named("a"), named("b")], "b": [named("cause")]},
            ["top", "a", "b", "cause"],
            "the flavor has no stock",
        ),
        ({"top": [named("top")]}, ["top"] * 5, "CCE does not say why"),
    ],
)
def test_cause_of_a_failed_node_is_in_its_jobs_sub_jobs(cce, jobs, read, message):
    """They are listed in full or by id, on four levels at most; the longest text is the innermost one."""
    api = Jobs(**jobs)
    failure = HuaweiInstances(api, cce.settings).failure_of_job("top")

    assert api.read == read
    assert failure.message.endswith(message)
    assert "CCE does not say why" in HuaweiInstances(api, cce.settings).failure_of_job("").message
    assert HuaweiInstances(api, cce.settings).node_id_of_job("") == ""
    assert api.read == read, "CCE forgot the job, so that no request is sent"


@pytest.mark.parametrize(
    ("status", "fault", "state", "message"),
    [
        ("SHUTOFF", {"message": "the host failed"}, "stopped", "the host failed"),
        ("ERROR", {"code": 500}, "stopped", "500"),
        ("SHUTOFF", {}, "stopped", None),
        ("ACTIVE", {"message": "an earlier one"}, "running", None),
    ],
)
def test_fault_of_a_stopped_server_is_why_its_node_ended(cce, instances, status, fault, state, message):
    """A user stops servers without one."""
    node_id = running(cce)
    server = {"id": server_of(cce, node_id), "status": status, "fault": fault}
    cce.api.answers["ListServersDetails"] = {"servers": [server]}
    [found] = instances.list()

    assert found.state == state
    assert (found.failure is None) is (message is None)
    if found.failure is not None:
        assert found.failure.message.endswith(message)
