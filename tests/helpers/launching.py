"""Requests to launch an instance for a NodeClaim of NodePool `web`."""

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, NodeSelectorRequirement
from journeyman.core.state import NodeClassState
from journeyman.ports import LaunchRequest


def launch_request(name, *, uid, types, capacity_types, zones=(), annotations=None, node_class, instance_types):
    """Return the launch request of a NodeClaim which allows these instance types, capacity types and zones.

    Args:
        name: The NodeClaim's name.
        uid: The NodeClaim's UID.
        types: The names of the instance types.
        capacity_types: The capacity types.
        zones: The zones; any if there are none.
        annotations: The NodeClaim's annotations.
        node_class: Fields of the NodeClass's state that differ from those of a ready NodeClass `default`.
        instance_types: The instance types that the NodeClass has.
    """
    wanted = {labels.INSTANCE_TYPE: types, labels.CAPACITY_TYPE: capacity_types}
    if zones:
        wanted[labels.ZONE] = zones
    requirements = [NodeSelectorRequirement(key=k, operator="In", values=tuple(v)) for k, v in wanted.items()]
    claim = {
        "metadata": {
            "name": name,
            "uid": uid,
            "labels": {labels.NODEPOOL: "web"},
            "annotations": annotations or {},
        },
        "spec": {
            "requirements": msgspec.to_builtins(requirements),
            "resources": {"requests": {"cpu": "1", "memory": "1Gi", "pods": "3"}},
        },
    }
    ready = {"name": "default", "uid": "0c6f", "generation": 2, "ready": True, "hash": "abc", "hash_version": "v1"}
    return LaunchRequest(
        claim=msgspec.convert(claim, NodeClaim),
        node_class=NodeClassState(**{**ready, **node_class}),
        instance_types=instance_types,
    )
