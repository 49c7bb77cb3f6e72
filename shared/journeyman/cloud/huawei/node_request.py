"""The body of CreateNode for a NodeClaim.

Source: CCE API reference, "Creating a Node".
Restates: huaweicloud-samples/karpenter-provider-huawei pkg/providers/instance/instance.go (`nodeSpecForCandidate`).
Differs: a name and tags, by which a later run finds the node; Spot; the NodeClaim's labels; the settings that the published
CCENodeClass lacks.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from journeyman.cloud.huawei import node_names
from journeyman.cloud.node_bootstrap import boot_taints, kubelet_labels
from journeyman.core.api import labels
from journeyman.core.api.ccenodeclass import BlockDevice, CCENodeClassSpec, CCENodeClassView, reserved_amounts
from journeyman.core.api.objects import NodeClaim
from journeyman.errors import CreateError

CLAIM_UID_LABEL: Final = f"{labels.HUAWEI_GROUP}/nodeclaim-uid"
MAX_LABELS: Final = 20  # CreateNode: k8sTags
MAX_TAINTS: Final = 20
_NETWORK_TAINT: Final = "node.kubernetes.io/network-unavailable"  # CCE's own; it refuses a request that sets it
_RESERVED: Final = {"cpu": "Cpu", "memory": "Mem", "pid": "Pid", "ephemeral-storage": "Storage"}


def create_node_body(
    node_class: CCENodeClassView,
    claim: NodeClaim,
    *,
    flavor: str,
    zone: str,
    subnet_id: str,
    capacity_type: str,
    cluster_id: str,
) -> dict[str, Any]:
    """Return the body. Raises CreateError if the NodeClaim has more taints than CCE accepts."""
    spec = node_class.spec
    node: dict[str, Any] = {
        "flavor": flavor,
        "az": zone,
        "os": spec.ims_selector.ims_family,
        "count": 1,
        "billingMode": 0,
        "offloadNode": True,  # as the published provider: the node belongs to no pool of CCE's autoscaler
        "login": _login(spec),
        "nodeNicSpec": {"primaryNic": {"subnetId": subnet_id}},
        **_disks(spec),
        "taints": _taints(claim),
        "k8sTags": _labels(claim, capacity_type),
        "userTags": node_names.to_request(node_names.claim_tags(spec.tags, claim, cluster_id=cluster_id)),
    }
    if spec.runtime_configuration is not None and spec.runtime_configuration.type is not None:
        node["runtime"] = {"name": spec.runtime_configuration.type}
    if spec.ecs_group_id:
        node["ecsGroupId"] = spec.ecs_group_id
    if extended := _extended(spec, capacity_type):
        node["extendParam"] = extended
    return {"kind": "Node", "apiVersion": "v3", "metadata": {"name": node_names.node_name(claim)}, "spec": node}


def _disks(spec: CCENodeClassSpec) -> dict[str, Any]:
    """Return root and data disks, and how CCE divides the first data disk between container runtime and kubelet."""
    managed = spec.k8s_volume
    labels_of_disk = {"size": str(managed.volume_size), "volumeType": managed.volume_type, "count": "1"}
    labels_of_disk |= {
        name: str(value) for name, value in (("iops", managed.iops), ("throughput", managed.throughput)) if value
    }
    return {
        "rootVolume": _disk(spec.block_device_mappings.root),
        "dataVolumes": [_disk(managed), *(_disk(disk) for disk in spec.block_device_mappings.users)],
        "storage": {
            "storageSelectors": [{"name": "k8s-data", "storageType": "evs", "matchLabels": labels_of_disk}],
            "storageGroups": [
                {
                    "name": "vgpaas",
                    "cceManaged": True,
                    "selectorNames": ["k8s-data"],
                    "virtualSpaces": [
                        {"name": "runtime", "size": "90%", "runtimeConfig": {"lvType": "linear"}},
                        {"name": "kubernetes", "size": "10%", "lvmConfig": {"lvType": "linear"}},
                    ],
                }
            ],
        },
    }


def _disk(disk: BlockDevice) -> dict[str, Any]:
    given = {"size": disk.volume_size, "volumetype": disk.volume_type, "iops": disk.iops, "throughput": disk.throughput}
    return {name: value for name, value in given.items() if value is not None}


def _login(spec: CCENodeClassSpec) -> dict[str, Any]:
    password = spec.login.user_password
    if password is None:
        return {"sshKey": spec.login.ssh_key}
    return {"userPassword": {"username": password.username or "root", "password": password.password}}


def _extended(spec: CCENodeClassSpec, capacity_type: str) -> dict[str, Any]:
    options, kubelet = spec.metadata_options, spec.kubelet
    given: dict[str, Any] = {
        "maxPods": kubelet.max_pods if kubelet else None,
        "alpha.cce/NodeImageID": spec.ims_selector.image_id,
        "agency_name": spec.agency_name,
        "alpha.cce/preInstall": _encoded(spec.pre_install),
        "alpha.cce/postInstall": _encoded(spec.post_install),
        "securityReinforcementType": spec.security_reinforcement_type,
        "serverMetadataHttpTokens": options.http_tokens if options else None,
    }
    if kubelet is not None:
        for prefix, reserved in (("systemReserved", kubelet.system_reserved), ("kubeReserved", kubelet.kube_reserved)):
            given |= {f"{prefix}{_RESERVED[name]}": value for name, value in reserved_amounts(reserved).items()}
    if capacity_type == labels.SPOT:
        given["marketType"] = "spot"
        given["spotPrice"] = None if spec.spot_price_limit is None else f"{spec.spot_price_limit:g}"
    return {name: value for name, value in given.items() if value is not None}


def _encoded(script: str | None) -> str | None:
    return base64.b64encode(script.encode()).decode() if script else None


def _taints(claim: NodeClaim) -> list[dict[str, str]]:
    """Return the taints, one for each key and effect; the last one counts, as in the API server."""
    taints = {(t.key, t.effect): t for t in boot_taints(claim) if t.key != _NETWORK_TAINT}
    if len(taints) > MAX_TAINTS:
        text = f"the NodeClaim has {len(taints)} taints, and CCE accepts {MAX_TAINTS}; remove some from the NodePool"
        raise CreateError(text, condition_reason="TooManyTaints", nodeclaim=claim.metadata.name)
    return [
        {"key": t.key, "effect": t.effect} | ({"value": t.value} if t.value else {}) for _, t in sorted(taints.items())
    ]


def _labels(claim: NodeClaim, capacity_type: str) -> Mapping[str, str]:
    """Return the labels with which the node registers. Those beyond CCE's limit are added when it is registered."""
    own = {CLAIM_UID_LABEL: claim.metadata.uid}
    found = kubelet_labels(claim, {labels.CAPACITY_TYPE: capacity_type})
    first = sorted(found)[: MAX_LABELS - len(own)]
    return {**{key: found[key] for key in first}, **own}
