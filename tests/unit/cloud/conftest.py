"""What tests of several clouds use."""

import msgspec

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim


def a_claim(name="default-abc", *, capacity_type=labels.ON_DEMAND, spec=None, **wanted):
    """Return a NodeClaim of NodePool `default`; keywords are further `In` requirements by the label's end."""
    keys = {"instance_type": labels.INSTANCE_TYPE, "zone": labels.ZONE, "arch": labels.ARCH}
    required = {labels.CAPACITY_TYPE: capacity_type, **{keys[key]: value for key, value in wanted.items()}}
    body = {
        "metadata": {
            "name": name,
            "uid": f"{name}-uid",
            "labels": {labels.NODEPOOL: "default", "team": "web", "node.kubernetes.io/role": "x"},
        },
        "spec": {
            "requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in required.items()],
            "resources": {"requests": {"cpu": "100m", "pods": "1"}},
            **(spec or {}),
        },
    }
    return msgspec.convert(body, NodeClaim)


def condition(body, type_):
    """Return (status, reason, message) of a NodeClass's condition."""
    return next((c["status"], c["reason"], c["message"]) for c in body["status"]["conditions"] if c["type"] == type_)
