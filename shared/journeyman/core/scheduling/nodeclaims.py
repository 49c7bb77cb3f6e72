"""Makes the NodeClaim of a planned node.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go `FinalizeScheduling`, nodeclaimtemplate.go
`ToNodeClaim`.
Differs: the name is derived, not random, so that the same decision made twice creates one NodeClaim; an annotation lists
the pods it was planned for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, Pod, Taint
from journeyman.core.api.resources import format_resources
from journeyman.core.scheduling.nodeclaim_templates import node_class_label
from journeyman.core.scheduling.results import PlannedClaim
from journeyman.core.state.pod_predicates import is_owned_by

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool

NAME_CHARACTERS: Final = 8
MAX_PLANNED_BYTES: Final = 32 * 1024  # an eighth of what the API server allows all annotations together
_UID_CHARACTERS: Final = 8
_BASE36: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_MAX_NAME: Final = 63  # a claim's name becomes a label value


def claim_name(pool: str, seed: str, pods: Sequence[str]) -> str:
    """Return `<pool>-<8 base 36 characters>`, the same for the same seed and pods.

    Args:
        pool: NodePool name; shortened if the whole would not fit a label value.
        seed: Differs between decisions for the same pods.
        pods: UIDs (or keys) of the planned pods, in any order.
    """
    digest = hashlib.sha256("\0".join((pool, seed, *sorted(pods))).encode()).digest()
    number = int.from_bytes(digest, "big")
    suffix = ""
    for _ in range(NAME_CHARACTERS):
        number, digit = divmod(number, 36)
        suffix += _BASE36[digit]
    return f"{pool[: _MAX_NAME - NAME_CHARACTERS - 1].rstrip('-.')}-{suffix}"


class PlannedPod(Struct, frozen=True, kw_only=True):
    """A pod in the planned-pods annotation: `namespace/name`, and the first characters of its UID (empty if unknown)."""

    key: str
    uid: str = ""

    def means(self, pod: Pod) -> bool:
        """Whether this is that pod, or a StatefulSet's next pod of the same name."""
        same = not self.uid or pod.metadata.uid.startswith(self.uid)
        return pod.key == self.key and (same or is_owned_by(pod, "StatefulSet", "apps"))


def planned_pods(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the pods (`namespace/name`) that a NodeClaim was planned for."""
    return tuple(pod.key for pod in parse_planned_pods(annotations))


def parse_planned_pods(annotations: Mapping[str, str]) -> tuple[PlannedPod, ...]:
    """Parse the planned-pods annotation: entries are `namespace/name:<8 characters of the UID>`."""
    entries = (entry.partition(":") for entry in annotations.get(labels.PLANNED_PODS, "").split(",") if entry)
    return tuple(PlannedPod(key=key, uid=uid) for key, _, uid in entries)


def format_planned_pods(keys: Sequence[str], uids: Mapping[str, str]) -> str:
    """Return the planned-pods annotation for these pods; pods beyond its size limit are left out and are not nominated.

    Args:
        keys: `namespace/name` of each.
        uids: Their UIDs by key, as far as they are known.
    """
    text = ",".join(f"{key}:{uids[key][:_UID_CHARACTERS]}" if uids.get(key) else key for key in keys)
    if len(text) <= MAX_PLANNED_BYTES:
        return text
    return text[: MAX_PLANNED_BYTES + 1].rpartition(",")[0]


def to_node_claim(
    planned: PlannedClaim,
    pool: NodePool,
    *,
    name: str,
    hash: str,  # noqa: A002 - Karpenter's word
    hash_version: str,
    uids: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the NodeClaim manifest.

    Args:
        planned: The planned node.
        pool: Its NodePool.
        name: From `claim_name`.
        hash: The NodePool's static hash, for drift.
        hash_version: The version of the hashing.
        uids: Of the planned pods that exist already, by key.
    """
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {
            "name": name,
            "labels": _labels(planned, pool),
            "annotations": {
                **pool.spec.template.metadata.annotations,
                labels.NODEPOOL_HASH: hash,
                labels.NODEPOOL_HASH_VERSION: hash_version,
                labels.MIN_VALUES_RELAXED: "true" if planned.min_values_relaxed else "false",
                labels.PLANNED_PODS: format_planned_pods(planned.pods, uids),
                **dict.fromkeys(planned.overlays, "true"),
                **({labels.DRA_DRIVERS: ",".join(planned.dra_drivers)} if planned.dra_drivers else {}),
            },
            "ownerReferences": [
                {
                    "apiVersion": "karpenter.sh/v1",
                    "kind": "NodePool",
                    "name": pool.metadata.name,
                    "uid": pool.metadata.uid,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": _spec(planned, pool),
    }


def _spec(planned: PlannedClaim, pool: NodePool) -> dict[str, Any]:
    """The spec: requirements and requests from the plan, the rest from the NodePool's template."""
    template = pool.spec.template
    spec: dict[str, Any] = {
        "requirements": [_requirement(r) for r in planned.requirements],
        "resources": {"requests": format_resources(planned.requests)},
        "nodeClassRef": {
            "group": template.spec.node_class_ref.group,
            "kind": template.spec.node_class_ref.kind,
            "name": template.spec.node_class_ref.name,
        },
        "expireAfter": template.spec.expire_after,
    }
    if template.spec.taints:
        spec["taints"] = [_taint(t) for t in template.spec.taints]
    if template.spec.startup_taints:
        spec["startupTaints"] = [_taint(t) for t in template.spec.startup_taints]
    if template.spec.termination_grace_period is not None:
        spec["terminationGracePeriod"] = template.spec.termination_grace_period
    return spec


def _labels(planned: PlannedClaim, pool: NodePool) -> dict[str, str]:
    """Template labels, NodePool and NodeClass, and one value for every requirement on a custom label."""
    class_key, class_name = node_class_label(pool)
    own = {
        r.key: r.values[0]
        for r in planned.requirements
        if r.operator == "In" and r.values and r.key not in labels.WELL_KNOWN and not labels.is_restricted(r.key)
    }
    return {
        **own,
        **pool.spec.template.metadata.labels,
        labels.NODEPOOL: pool.metadata.name,
        class_key: class_name,
    }


def _requirement(entry: NodeSelectorRequirement) -> dict[str, Any]:
    made: dict[str, Any] = {"key": entry.key, "operator": entry.operator}
    if entry.values:
        made["values"] = list(entry.values)
    if entry.min_values is not None:
        made["minValues"] = entry.min_values
    return made


def _taint(taint: Taint) -> dict[str, str]:
    made = {"key": taint.key, "effect": taint.effect}
    return {**made, "value": taint.value} if taint.value else made
