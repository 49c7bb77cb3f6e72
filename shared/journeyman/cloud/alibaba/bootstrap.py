"""Write the user data with which an instance joins its ACK cluster.

ACK's attach script does the work; its flags carry the node's labels, taints and kubelet settings.

Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/providers/cluster (ackmanaged.go, cloudinit.go).
Differs: the kubelet gets all settings of the NodeClass, not just maxPods.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from email.message import Message
from typing import Any, Final

from journeyman.cloud.node_bootstrap import (
    SHELL_SCRIPT,
    MimePart,
    boot_taints,
    kubelet_labels,
    mime_archive,
    mime_parts,
)
from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, Taint
from journeyman.errors import CreateError

MAX_BYTES: Final = 32 * 1024  # ECS's limit, before base64
_NODE_LABEL: Final = {"k8s.aliyun.com": "true"}
_CLUSTER_LABEL: Final = "ack.aliyun.com"


def user_data(
    claim: NodeClaim,
    *,
    attach_script: str,
    cluster_id: str,
    capacity_type: str,
    kubelet: Mapping[str, Any],
    custom: str,
) -> str:
    """Return the user data, before base64: the parts with stage=pre, the attach script, the user's other parts.

    Args:
        claim: The NodeClaim, whose labels and taints the node gets.
        attach_script: ACK's command, one line.
        cluster_id: ACK's id of the cluster.
        capacity_type: Of the launch.
        kubelet: `spec.kubeletConfiguration` of the NodeClass.
        custom: `spec.userData` of the NodeClass.

    Raises:
        CreateError: The user's part is not valid MIME, or the whole is larger than ECS accepts.
    """
    more = {labels.CAPACITY_TYPE: capacity_type, labels.DO_NOT_SYNC_TAINTS: "true"}
    node_labels = {**_NODE_LABEL, _CLUSTER_LABEL: cluster_id, **kubelet_labels(claim, more)}
    config = json.dumps({"kubelet_config": dict(kubelet)}, sort_keys=True, separators=(",", ":"))
    flags = {
        "--labels": ",".join(f"{key}={node_labels[key]}" for key in sorted(node_labels)),
        "--taints": ",".join(_taint_text(taint) for taint in boot_taints(claim)),
        "--node-config": base64.b64encode(config.encode()).decode(),
    }
    command = " ".join([attach_script, *(f"{flag} {value}" for flag, value in flags.items())])
    try:
        parts = mime_parts(custom)
    except ValueError as error:
        raise CreateError(f"spec.userData: {error}", condition_reason="UserDataInvalid") from error
    first = [part for part in parts if _is_early(part.content_type)]
    others = [part for part in parts if not _is_early(part.content_type)]
    text = mime_archive([*first, MimePart(SHELL_SCRIPT, f"#!/bin/bash\n\n{command}\n"), *others])
    size = len(text.encode())
    if size > MAX_BYTES:
        raise CreateError(
            f"the user data has {size} bytes, ECS accepts {MAX_BYTES}; shorten spec.userData",
            condition_reason="UserDataSizeLimitExceeded",
            user_data_bytes=size,
        )
    return text


def _is_early(content_type: str) -> bool:
    """Whether a part runs before the attach script (`stage=pre`)."""
    header = Message()
    header["Content-Type"] = content_type
    return header.get_param("stage") == "pre"


def _taint_text(taint: Taint) -> str:
    """Return a taint as the kubelet's flag has it."""
    return f"{taint.key}={taint.value}:{taint.effect}"
