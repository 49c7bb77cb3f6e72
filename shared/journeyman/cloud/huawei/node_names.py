"""Names and tags of the nodes that Journeyman creates, by which later runs find them.

CCE has no client token, and returns neither a node's labels nor its tags. Its name is what a run after a crash finds; the ECS
server's tags, which appear once the server is created, have the NodeClaim's full name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from journeyman.core.api import labels
from journeyman.core.api.ccenodeclass import CONTROLLERS_TAGS
from journeyman.core.api.objects import NodeClaim

CLUSTER, NODE_POOL, CLAIM, CLAIM_UID = CONTROLLERS_TAGS

_LABEL_OF: Final = {NODE_POOL: labels.NODEPOOL, CLAIM: labels.NODECLAIM_TAG, CLAIM_UID: labels.NODECLAIM_UID_TAG}
_LONGEST_PREFIX: Final = 23  # CreateNode allows 56 characters, of which the UID has 32
_OURS: Final = re.compile(r"^[a-z][a-z0-9-]*-([0-9a-f]{32})$")
_NOT_ALLOWED: Final = re.compile(r"[^a-z0-9-]+")


def uid_digits(uid: str) -> str:
    """Return a NodeClaim's UID as 32 hexadecimal digits; those of its hash, if it is no UUID."""
    try:
        return UUID(uid).hex
    except ValueError:
        return hashlib.sha256(uid.encode()).hexdigest()[:32]


def node_name(claim: NodeClaim) -> str:
    """Return the name of a NodeClaim's node: the start of the claim's name, and its UID."""
    start = _NOT_ALLOWED.sub("-", claim.metadata.name.lower())[:_LONGEST_PREFIX].strip("-")
    prefix = start if start[:1].isalpha() else f"n{start}"[:_LONGEST_PREFIX]
    return f"{prefix}-{uid_digits(claim.metadata.uid)}"


def digits_of(name: str) -> str:
    """Return the UID's digits in the name of a node that Journeyman created; empty for other nodes."""
    found = _OURS.match(name)
    return found.group(1) if found else ""


def claim_tags(user_tags: Mapping[str, str], claim: NodeClaim, *, cluster_id: str) -> dict[str, str]:
    """Return the tags of a NodeClaim's server; ours override users'."""
    return {
        **user_tags,
        CLUSTER: cluster_id,
        NODE_POOL: claim.metadata.labels.get(labels.NODEPOOL, ""),
        CLAIM: claim.metadata.name,
        CLAIM_UID: claim.metadata.uid,
    }


def to_request(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags as CreateNode has them, sorted by key."""
    return [{"key": key, "value": tags[key]} for key in sorted(tags)]


def from_server(texts: Iterable[Any]) -> dict[str, str]:
    """Return the tags of a server in ListServersDetails, each a text `key=value`, by key."""
    return dict(str(text).partition("=")[::2] for text in texts)


def instance_tags(digits: str, server_tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of an instance: the server's, and ours by the keys that every cloud has.

    Before the server exists, or if a user removed the tag, the node's name has the UID.
    """
    own = {_LABEL_OF[key]: value for key, value in server_tags.items() if key in _LABEL_OF}
    if not own.get(labels.NODECLAIM_UID_TAG):
        own[labels.NODECLAIM_UID_TAG] = str(UUID(hex=digits))
    return {**server_tags, **own}
