"""Every cloud's provider says how instances differ from what their NodeClass asks for now, with few requests."""

import msgspec
import pytest

from journeyman.core.api.objects import NodeClaim
from journeyman.errors import CloudProviderError, RateLimitedError
from journeyman.steps.load import node_class_state


@pytest.fixture
def state_of(provider):
    """Return a function that returns the state of a NodeClass with its hash."""

    def make(body):
        metadata = {**body["metadata"], "annotations": dict(provider.annotations(body))}
        return node_class_state({**body, "metadata": metadata}, provider.node_class)

    return make


@pytest.fixture
def claim_of(provider, ready):
    """Return a function that returns the launched NodeClaim of an instance, with the hash that its NodeClass had."""

    def make(name, instance, **annotations):
        resource = provider.node_class
        ref = {"group": resource.group, "kind": resource.kind, "name": "default"}
        metadata = {"name": name, "annotations": {**provider.annotations(ready), **annotations}}
        status = {"providerID": instance.provider_id}
        body = {"metadata": metadata, "spec": {"nodeClassRef": ref}, "status": status}
        return msgspec.convert(body, NodeClaim)

    return make


def with_other_ids(body, field):
    """Return a NodeClass whose status has found other objects than before."""
    found = [{**entry, "id": f"{entry['id']}0"} for entry in body["status"][field]]
    return {**body, "status": {**body["status"], field: found}}


def test_new_instance_has_not_drifted(running, provider, ready, state_of, claim_of):
    """It has the subnet, security groups and image of the NodeClass, whatever its type and zone."""
    first, second = running("first"), running("second", capacity_type="spot")
    claims = [claim_of("first", first), claim_of("second", second)]
    assert provider.is_drifted(claims, [state_of(ready)]) == {"first": "", "second": ""}


def test_changed_static_field_drifts_without_a_request(cloud, running, provider, ready, state_of, claim_of):
    """The hashes differ in the same version. A NodeClaim without NodeClass is left out."""
    instance = running("n")
    changed = {**ready, "spec": {**ready["spec"], **cloud.settings["static"]}}
    keys = list(provider.annotations(ready))
    version = next(key for key in keys if key.endswith("-version"))
    before = cloud.calls()

    assert provider.is_drifted([claim_of("n", instance)], [state_of(changed)]) == {"n": "NodeClassDrift"}
    assert provider.is_drifted([claim_of("n", instance)], []) == {}
    assert cloud.calls() == before
    assert provider.is_drifted([claim_of("n", instance, **{version: "v0"})], [state_of(changed)]) == {"n": ""}


def test_instance_in_a_subnet_that_is_not_selected_any_more_drifts(cloud, running, provider, state_of, claim_of):
    """The selector terms select another subnet in the same zone."""
    instance = running("n")
    cloud.add_subnet(instance.zone, "moved")
    body = cloud.node_class("moved")
    moved = {**body, "status": provider.resolve(body, cloud.clock.now())}
    (reason,) = (reason for field, reason in cloud.drift_reasons.items() if field.lower() in ("subnets", "vswitches"))
    assert provider.is_drifted([claim_of("n", instance)], [state_of(moved)]) == {"n": reason}


def test_instance_drifts_from_each_id_in_the_status(cloud, running, provider, ready, state_of, claim_of):
    """The NodeClass has found other objects, such as a newer image; while it has found none, nothing is known."""
    claims = [claim_of("n", running("n"))]
    for field, reason in cloud.drift_reasons.items():
        assert provider.is_drifted(claims, [state_of(with_other_ids(ready, field))]) == {"n": reason}
        unresolved = {**ready, "status": {**ready["status"], field: []}}
        assert provider.is_drifted(claims, [state_of(unresolved)]) == {}
    assert provider.is_drifted(claims, [state_of(ready)]) == {"n": ""}


def test_one_list_serves_all_nodeclaims_for_five_minutes(cloud, running, provider, ready, state_of, claim_of):
    """No instance is read by its id. One that was not listed is left out until the next list."""
    node_class, claims = state_of(ready), [claim_of(f"n{i}", running(f"n{i}")) for i in range(3)]
    assert provider.is_drifted(claims, [node_class]) == {"n0": "", "n1": "", "n2": ""}
    before = cloud.calls()
    late = claim_of("late", running("late"))

    launched = cloud.calls()
    assert provider.is_drifted([*claims, late], [node_class]) == {"n0": "", "n1": "", "n2": ""}
    assert cloud.calls() == launched
    cloud.wait(300)
    waited = cloud.calls()
    assert provider.is_drifted([*claims, late], [node_class])["late"] == ""
    listed = cloud.calls() - waited
    assert sum(listed.values()) <= 4, (before, listed)


@pytest.mark.parametrize(("failure", "error"), [("throttled", RateLimitedError), ("denied", CloudProviderError)])
def test_failed_list_says_nothing_about_drift(cloud, running, provider, ready, state_of, claim_of, failure, error):
    """The next call lists again."""
    claims = [claim_of("n", running("n"))]
    if failure == "denied":
        with cloud.denying("list"), pytest.raises(error):
            provider.is_drifted(claims, [state_of(ready)])
    else:
        cloud.fail("list", failure)
        with pytest.raises(error):
            provider.is_drifted(claims, [state_of(ready)])

    assert provider.is_drifted(claims, [state_of(ready)]) == {"n": ""}
