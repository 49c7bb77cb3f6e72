"""Every cloud's provider lists, gets and deletes the instances of its own cluster, and no failure looks like their absence."""

import pytest

from journeyman.core.api import labels
from journeyman.core.lifecycle.interruption import InterruptionKind
from journeyman.errors import (
    CloudProviderError,
    CloudUnavailableError,
    CreateError,
    NodeClaimNotFoundError,
    NoInstanceIdError,
    RateLimitedError,
)
from journeyman.events import parse_trigger
from journeyman.ports import Interruption


def ids(instances):
    """Return the provider ids of instances."""
    return [instance.provider_id for instance in instances]


def is_gone(provider, provider_id):
    """Delete an instance; return whether the cloud answered that it does not exist, and raise any other error that may not pass."""
    error = provider.delete_each([provider_id]).get(provider_id)
    if error is not None and not isinstance(error, (NodeClaimNotFoundError, CloudUnavailableError)):
        raise error
    return isinstance(error, NodeClaimNotFoundError)


def delete(provider, provider_id):
    """Delete an instance, and raise its error."""
    for error in provider.delete_each([provider_id]).values():
        raise error


def deleted(cloud, provider, provider_id):
    """Delete an instance as the terminate step does: again until it is gone. Return how often that took."""
    for attempt in range(1, 10):
        if is_gone(provider, provider_id):
            return attempt
        cloud.wait(120)
    raise AssertionError("the instance does not end")


# -- delete -----------------------------------------------------------------------------------------------------------


def test_instance_exists_until_it_is_terminated(cloud, running, provider):
    """It exists while it shuts down; afterwards list, get and delete report that it does not."""
    provider_id = running("mortal").provider_id
    assert provider.get_each([provider_id])[provider_id].state == "running"

    assert provider.delete_each([provider_id]) == {}
    assert provider.delete_each([provider_id, provider_id]) == {}
    assert provider.get_each([provider_id])[provider_id].state in ("shutting-down", "stopping")
    assert ids(provider.list()) == [provider_id]

    cloud.wait(600)
    assert provider.list() == ()
    assert provider.get_each([provider_id]) == {}
    assert is_gone(provider, provider_id)


def test_instance_that_still_starts_is_deleted(cloud, launch, request_for, provider):
    """A cloud that cannot delete it yet raises a retryable error."""
    provider_id = launch(request_for("hasty")).instance.provider_id
    assert deleted(cloud, provider, provider_id) <= 4
    assert provider.list() == ()


def test_stopped_instance_is_listed_and_deleted(cloud, running, provider):
    """It still belongs to the cluster, and costs its disk."""
    instance = running("stopped")
    cloud.stop(cloud.instance_id(instance))
    cloud.wait(600)
    assert [(i.provider_id, i.state) for i in provider.list()] == [(instance.provider_id, "stopped")]
    deleted(cloud, provider, instance.provider_id)
    assert provider.list() == ()


def test_externally_terminated_instance_is_not_found(cloud, running, provider):
    """A user terminated it in the console."""
    cloud.require("external termination")
    instance = running("gone")
    cloud.terminate(cloud.instance_id(instance))
    cloud.wait(600)

    assert provider.list() == ()
    assert provider.get_each([instance.provider_id]) == {}
    assert is_gone(provider, instance.provider_id)


def test_foreign_provider_id_is_an_error_without_a_request(cloud, provider):
    """It does not count as a terminated instance, so no finalizer is removed because of it.

    An unknown instance does, so that a NodeClaim with a stale provider id can be finalized.
    """
    before = cloud.calls()
    errors = provider.delete_each(cloud.foreign_provider_ids)
    assert provider.get_each(cloud.foreign_provider_ids) == {}
    assert errors.keys() == set(cloud.foreign_provider_ids)
    assert all(type(e) is NoInstanceIdError and "provider id" in str(e) for e in errors.values())
    assert cloud.calls() == before

    assert provider.get_each([cloud.unknown_provider_id]) == {}
    assert is_gone(provider, cloud.unknown_provider_id)


def test_instances_end_together(cloud, running, provider):
    """With as few requests as the cloud allows, and those that are ending already are no error."""
    ended = [running(f"of-three-{n}").provider_id for n in range(3)]
    before = cloud.calls()
    assert provider.delete_each(ended) == {}

    new = cloud.calls() - before
    assert new[cloud.deletion] == (3 if cloud.one_deletion_a_request else 1)
    assert provider.get_each(ended).keys() == set(ended)
    assert all(found.state != "running" for found in provider.get_each(ended).values())
    cloud.wait(600)
    before = cloud.calls()
    assert provider.get_each(ended) == {}
    assert sum((cloud.calls() - before).values()) <= 2  # one may ask whether an empty answer means a missing permission


def test_instance_that_cannot_be_terminated_keeps_no_other_running(cloud, running, provider):
    """The cloud refuses a request that names one, and each of the others is accepted."""
    ended = [running(f"beside-{n}").provider_id for n in range(4)]
    foreign = cloud.foreign_provider_ids[0]
    errors = provider.delete_each([foreign, *ended, cloud.unknown_provider_id])

    assert {id_: type(error) for id_, error in errors.items()} == {
        foreign: NoInstanceIdError,
        cloud.unknown_provider_id: NodeClaimNotFoundError,
    }
    assert provider.get_each([*ended, cloud.unknown_provider_id, foreign]).keys() == set(ended)
    cloud.wait(600)
    assert provider.list() == ()


# -- list -------------------------------------------------------------------------------------------------------------


def test_list_has_only_the_clusters_own_instances(cloud, cluster, launch, request_for, provider):
    """Another cluster sees none of them; each carries its claim's name and UID, the NodePool, and the user's tags."""
    body = cloud.node_class(tags={"team": "web"})
    body["status"] = provider.resolve(body, cloud.clock.now())
    request = request_for("ours", body=body)
    outcome = launch(request)
    cloud.wait(60)
    [listed] = provider.list()

    assert cloud.provider(f"{cluster}0").list() == ()
    assert (listed.provider_id, listed.claim) == (outcome.instance.provider_id, "ours")
    assert listed.claim_uid == request.claim.metadata.uid
    assert (listed.tags[labels.NODEPOOL], listed.tags["team"]) == ("web", "web")
    assert listed.launched_at.utcoffset().total_seconds() == 0


def test_list_leaves_out_instances_without_a_node_pool(cloud, running, provider):
    """A managed node of the cluster, or one whose NodePool tag a user removed, is none of ours."""
    cloud.require("node pool tag")
    instance = running("stripped")
    cloud.untag(cloud.instance_id(instance), labels.NODEPOOL)
    assert provider.list() == ()
    assert provider.get_each([instance.provider_id])[instance.provider_id].provider_id == instance.provider_id


def test_foreign_tags_on_an_instance_change_nothing(cloud, cluster, running, provider):
    """A user tagged it for another cluster as well."""
    instance = running("tagged")
    cloud.tag(cloud.instance_id(instance), {"owner": "alice", "karpenter.sh/discovery": "other"})
    [listed] = provider.list()
    assert listed.claim == "tagged"
    assert listed.tags["owner"] == "alice"
    assert listed.tags.items() >= cloud.cluster_tags(cluster).items()


def test_list_reads_all_pages(cloud, running, provider):
    """There are more instances than one answer of the cloud has."""
    cloud.require("pages")
    running("first")
    [listed] = provider.list()
    cloud.add_copies(listed, cloud.page)
    found = provider.list()
    for instance in found:
        cloud.terminate(cloud.instance_id(instance))
    cloud.wait(600)

    assert len(set(ids(found))) == cloud.page + 1
    assert ids(found) == sorted(ids(found))


def test_missing_list_permission_is_not_an_empty_list(cloud, cluster, running, provider):
    """Neither for a new process, nor for one that could list before; else garbage collection would delete live claims."""
    other = cloud.provider(f"{cluster}0")
    assert other.list() == ()
    instance = running("hidden")
    for operation, using, call in (
        ("list", provider, lambda p: p.list()),
        ("get", provider, lambda p: p.get_each([instance.provider_id])),
        ("list", other, lambda p: p.list()),
        ("list", cloud.provider(cluster), lambda p: p.list()),
    ):
        with cloud.denying(operation), pytest.raises(CloudProviderError) as caught:
            call(using)

        assert not isinstance(caught.value, NodeClaimNotFoundError)
        assert cloud.permissions[operation] in str(caught.value)
    assert ids(provider.list()) == [instance.provider_id]


# -- interruption and health ------------------------------------------------------------------------------------------


def test_spot_reclaim_is_an_interruption_of_that_instance(cloud, running, provider):
    """The event names it, and after the notice the instance ends."""
    instance = running("spot", capacity_type="spot")
    cloud.published.clear()
    cloud.interrupt(cloud.instance_id(instance))
    triggers = [parse_trigger(event) for event in cloud.published]
    reclaims = [t for t in triggers if isinstance(t, Interruption) and t.kind is InterruptionKind.SPOT_INTERRUPTED]

    assert {t.instance_ids for t in reclaims} == {(cloud.instance_id(instance),)}
    assert ids(provider.list()) == [instance.provider_id]
    cloud.wait(600)
    cloud.wait(600)
    assert provider.list() == ()


def test_external_stop_and_termination_are_interruptions(cloud, running):
    """Each event names the instance."""
    id_ = cloud.instance_id(running("handled"))
    cloud.published.clear()
    for change, kind in (
        (cloud.stop, InterruptionKind.INSTANCE_STOPPED),
        (cloud.terminate, InterruptionKind.INSTANCE_TERMINATED),
    ):
        change(id_)
        cloud.wait(600)
        assert kind in {t.kind for t in map(parse_trigger, cloud.published) if id_ in t.instance_ids}


def test_scheduled_maintenance_is_a_status_of_the_instance(cloud, running, provider):
    """A healthy instance has none."""
    instance, healthy = running("maintained"), running("healthy")
    cloud.schedule_maintenance(cloud.instance_id(instance))
    statuses = [s for s in provider.statuses() if s.provider_id in (instance.provider_id, healthy.provider_id)]
    assert [(s.provider_id, s.category) for s in statuses] == [(instance.provider_id, "EventStatus")]
    assert statuses[0].name


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "kind"), [("throttled", RateLimitedError), ("unavailable", CloudUnavailableError), ("expired", CloudUnavailableError)]
)  # fmt: skip
def test_passing_failures_are_retryable(cloud, running, provider, failure, kind):
    """Throttling, an outage and expired credentials say nothing about the instance."""
    instance = running("busy")
    calls = {
        "list": [provider.list],
        "get": [lambda: provider.get_each([instance.provider_id])],
        "delete": [lambda: delete(provider, instance.provider_id)],
        "statuses": [provider.statuses],
        "subnets": [lambda: cloud.provider("fresh").resolve(cloud.node_class(), cloud.clock.now())],
    }
    for operation, methods in calls.items():
        for method in methods:
            cloud.fail(operation, failure)
            with pytest.raises(kind) as caught:
                method()
            assert caught.value.retryable
            assert cloud.permissions[operation] in str(caught.value)


@pytest.mark.parametrize("failure", ["denied", "bad key"])
def test_refusals_name_the_operation_and_the_remedy(cloud, running, provider, failure):
    """A retry does not help; a user must change the role's permissions or the key."""
    instance = running("locked")
    calls = {"delete": lambda: delete(provider, instance.provider_id), "statuses": provider.statuses}
    for operation, method in calls.items():
        cloud.fail(operation, failure)
        with pytest.raises(CloudProviderError) as caught:
            method()
        assert not caught.value.retryable
        assert not isinstance(caught.value, NodeClaimNotFoundError)
        assert cloud.permissions[operation] in str(caught.value)
        assert any(word in str(caught.value) for word in ("grant", "key"))


def test_unreachable_cloud_raises_a_retryable_error(cloud, cluster, request_for):
    """Every method raises it, and none an SDK error."""
    lost = cloud.provider(cluster, unreachable=True)
    request = request_for("lost")
    calls = [
        lambda: lost.resolve(cloud.node_class(), cloud.clock.now()),
        lambda: lost.get_instance_types(request.node_class.raw),
        lost.list,
        lambda: lost.get_each([cloud.unknown_provider_id]),
        lambda: delete(lost, cloud.unknown_provider_id),
        lost.statuses,
    ]
    for call in calls:
        with pytest.raises(CloudUnavailableError) as caught:
            call()
        assert caught.value.retryable

    [outcome] = lost.launch([request])
    assert (type(outcome.error), outcome.answered) == (CreateError, False)
    lost.refresh_prices()
    assert lost.prices().message
