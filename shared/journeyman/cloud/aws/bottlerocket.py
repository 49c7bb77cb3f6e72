"""Bottlerocket's settings: the user's TOML, with what must be ours put over it.

Restates: karpenter-provider-aws pkg/providers/amifamily/bootstrap/bottlerocket.go, pkg/providers/amifamily/bottlerocket.go.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from journeyman.cloud.aws.bootstrap import Bootstrap

_tomllib: Final[Any] = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
_VERSION: Final = re.compile(r"v(\d+)\.(\d+)\.")
_BINDS_BY_DEFAULT: Final = (1, 46)  # from here on `ephemeral-storage bind` knows the directories itself
_DIRECTORIES: Final = ["--dirs", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"]
_MAPS: Final = (
    ("systemReserved", "system-reserved"),
    ("kubeReserved", "kube-reserved"),
    ("evictionHard", "eviction-hard"),
    ("evictionSoft", "eviction-soft"),
    ("evictionSoftGracePeriod", "eviction-soft-grace-period"),
)
_SCALARS: Final = (
    ("maxPods", "max-pods", int),
    ("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", int),
    ("imageGCHighThresholdPercent", "image-gc-high-threshold-percent", str),
    ("imageGCLowThresholdPercent", "image-gc-low-threshold-percent", str),
    ("cpuCFSQuota", "cpu-cfs-quota-enforced", bool),
)


def bottlerocket_settings(bootstrap: Bootstrap) -> dict[str, Any]:
    """The whole settings document.

    Raises:
        ValueError: The user's part is not TOML.
    """
    document: dict[str, Any] = _tomllib.loads(bootstrap.custom)
    settings = _section(document, "settings")
    kubernetes = _section(settings, "kubernetes")
    kubernetes.setdefault("cloud-provider", "external")
    kubernetes["cluster-name"] = bootstrap.cluster_name
    kubernetes["api-server"] = bootstrap.cluster_endpoint
    if bootstrap.cluster_ca:
        kubernetes["cluster-certificate"] = bootstrap.cluster_ca
    kubernetes["node-labels"] = {**_section(kubernetes, "node-labels"), **bootstrap.labels}
    kubernetes["node-taints"] = _taints(bootstrap)
    _apply_kubelet(kubernetes, bootstrap.kubelet)
    if bootstrap.raid0:
        _section(settings, "bootstrap-commands")["000-mount-instance-storage"] = _mount_local_disks(bootstrap.ami_name)
    return document


def _section(table: dict[str, Any], key: str) -> dict[str, Any]:
    section = table.setdefault(key, {})
    if not isinstance(section, dict):
        raise ValueError(f"{key} is not a table")  # noqa: TRY004 - the user's text is wrong, not a caller's argument
    return section


def _taints(bootstrap: Bootstrap) -> dict[str, list[str]]:
    taints: dict[str, list[str]] = {}
    for taint in bootstrap.taints:
        taints.setdefault(taint.key, []).append(f"{taint.value}:{taint.effect}")
    return taints


def _apply_kubelet(kubernetes: dict[str, Any], kubelet: Mapping[str, Any]) -> None:
    if kubelet.get("clusterDNS"):
        kubernetes["cluster-dns-ip"] = kubelet["clusterDNS"][0]
    for field, name, convert in _SCALARS:
        if kubelet.get(field) is not None:
            kubernetes[name] = convert(kubelet[field])
    for field, name in _MAPS:
        if kubelet.get(field):
            kubernetes[name] = {key: str(value) for key, value in kubelet[field].items()}


def _mount_local_disks(ami_name: str) -> dict[str, Any]:
    """Prepare the local disks at every boot, before anything that needs them."""
    version = _VERSION.search(ami_name)
    knows = version is not None and (int(version[1]), int(version[2])) >= _BINDS_BY_DEFAULT
    bind = ["apiclient", "ephemeral-storage", "bind", *([] if knows else _DIRECTORIES)]
    return {"commands": [["apiclient", "ephemeral-storage", "init"], bind], "essential": True, "mode": "always"}
