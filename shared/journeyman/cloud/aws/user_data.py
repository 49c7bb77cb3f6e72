"""Write the user data of each AMI family, with which a node joins: its labels, taints and kubelet settings.

Restates: karpenter-provider-aws pkg/providers/amifamily/bootstrap (nodeadm.go, eksbootstrap.go, bottlerocket.go,
windows.go) and mime/mime.go.
Differs: our NodeConfig is JSON, which is also YAML. A user's text is a NodeConfig only if it says so in its apiVersion; Karpenter
takes any YAML mapping for one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from ipaddress import ip_address
from typing import Any, Final

import msgspec
from msgspec import Struct

from journeyman.cloud.aws.ami_families import AL2, AL2023, BOTTLEROCKET, CUSTOM, AmiFamily
from journeyman.cloud.node_bootstrap import SHELL_SCRIPT, MimePart, is_mime, kubelet_labels, mime_archive, mime_parts
from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim, Taint

MAX_BYTES: Final = 16384  # EC2's limit, before base64
_NODE_CONFIG: Final = "application/node.eks.aws"
_NODE_CONFIG_API: Final = "node.eks.aws/"


def user_data(bootstrap: Bootstrap) -> str:
    """Return the user data, before base64.

    Raises:
        ValueError: The user's part is not valid MIME or TOML.
    """
    family = bootstrap.family
    if family is CUSTOM:
        return bootstrap.custom
    if family is BOTTLEROCKET:
        return _as_toml(bottlerocket_settings(bootstrap))
    if family.is_windows:
        return _windows(bootstrap)
    if family is AL2:
        return mime_archive([*mime_parts(bootstrap.custom), MimePart(SHELL_SCRIPT, _eks_bootstrap(bootstrap))])
    return mime_archive([*_al2023_parts(bootstrap.custom), MimePart(_NODE_CONFIG, _node_config(bootstrap))])


def user_data_problem(family: AmiFamily, custom: str, *, raid0: bool) -> str:
    """Return why a user's part of the user data cannot work with its family, in words; empty if nothing is known against it."""
    try:
        if family is BOTTLEROCKET:
            document = _parsed_toml(custom)
            return _conflict_of_local_disks(document) if raid0 else ""
        if family in (AL2, AL2023):
            mime_parts(custom)
    except ValueError as error:
        return f"spec.userData is not valid: {error}"
    return ""


def _conflict_of_local_disks(document: dict[str, Any]) -> str:
    """Return which of the user's bootstrap commands sets up the local disks that RAID0 sets up as well."""
    commands = _section(_section(document, "settings"), "bootstrap-commands")
    own = [
        name
        for name, command in sorted(commands.items())
        if name != _LOCAL_DISKS and "ephemeral-storage" in str(command)
    ]
    if not own:
        return ""
    return (
        f"spec.userData has the bootstrap command {', '.join(own)} with ephemeral-storage, and spec.instanceStorePolicy RAID0 adds "
        "another one for the same disks: remove one of them"
    )


def _node_config(bootstrap: Bootstrap) -> str:
    cluster = {
        "name": bootstrap.cluster_name,
        "apiServerEndpoint": bootstrap.cluster_endpoint,
        "certificateAuthority": bootstrap.cluster_ca,
        "cidr": bootstrap.service_cidr,
    }
    taints = [{"key": t.key, "effect": t.effect, **({"value": t.value} if t.value else {})} for t in bootstrap.taints]
    spec: dict[str, Any] = {
        "cluster": cluster,
        "kubelet": {
            "config": {**bootstrap.kubelet, "registerWithTaints": taints},
            "flags": [_label_flag(bootstrap.labels)],
        },
    }
    if bootstrap.raid0:
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
    config = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    # indented by msgspec, because json indents in Python, which is slower
    return msgspec.json.format(json.dumps(config, sort_keys=True), indent=2) + "\n"


def _eks_bootstrap(bootstrap: Bootstrap) -> str:
    dns = next(iter(bootstrap.kubelet.get("clusterDNS") or ()), "")
    ca = f"--b64-cluster-ca '{bootstrap.cluster_ca}'" if bootstrap.cluster_ca else ""
    # bootstrap.sh accepts no equal signs between its options and their values
    options = [
        f"/etc/eks/bootstrap.sh '{bootstrap.cluster_name}' --apiserver-endpoint '{bootstrap.cluster_endpoint}' {ca}".strip(),
        *(["--ip-family ipv6"] if dns and ip_address(dns).version == 6 else []),
        *([f"--dns-cluster-ip '{dns}'"] if dns else []),
        "--use-max-pods false",
        f"--kubelet-extra-args '{_kubelet_arguments(bootstrap)}'",
        *(["--local-disks raid0"] if bootstrap.raid0 else []),
    ]
    log = "exec > >(tee /var/log/user-data.log|logger -t user-data -s 2>/dev/console) 2>&1"
    return "\n".join(("#!/bin/bash -xe", log, " \\\n".join(options)))


def _windows(bootstrap: Bootstrap) -> str:
    dns = next(iter(bootstrap.kubelet.get("clusterDNS") or ()), "")
    command = [
        f"& $EKSBootstrapScriptFile -EKSClusterName '{bootstrap.cluster_name}'",
        f"-APIServerEndpoint '{bootstrap.cluster_endpoint}'",
        *([f"-Base64ClusterCA '{bootstrap.cluster_ca}'"] if bootstrap.cluster_ca else []),
        f"-KubeletExtraArgs '{_kubelet_arguments(bootstrap)}'",
        *([f"-DNSClusterIP '{dns}'"] if dns else []),
    ]
    lines = [
        "<powershell>",
        *([bootstrap.custom] if bootstrap.custom else []),
        r'[string]$EKSBootstrapScriptFile = "$env:ProgramFiles\Amazon\EKS\Start-EKSBootstrap.ps1"',
        " ".join(command),
        "</powershell>",
    ]
    return "\n".join(lines)


def _kubelet_arguments(bootstrap: Bootstrap) -> str:
    """Return the kubelet settings that exist as flags, in Karpenter's order, with maps sorted by key."""
    kubelet = bootstrap.kubelet
    taints = ",".join(f"{t.key}={t.value}:{t.effect}" if t.value else f"{t.key}:{t.effect}" for t in bootstrap.taints)
    flags = [
        _label_flag(bootstrap.labels),
        f'--register-with-taints="{taints}"',
        *(f"--{flag}={kubelet[field]}" for field, flag in _NUMBER_FLAGS if kubelet.get(field) is not None),
        *(
            f'--{flag}="{_joined(kubelet[field], separator)}"'
            for field, flag, separator in _MAP_FLAGS
            if kubelet.get(field)
        ),
        *(f"--{flag}={kubelet[field]}" for field, flag in _LATE_NUMBER_FLAGS if kubelet.get(field) is not None),
    ]
    if kubelet.get("cpuCFSQuota") is not None:
        flags.append(f"--cpu-cfs-quota={'true' if kubelet['cpuCFSQuota'] else 'false'}")
    return " ".join(flags)


_NUMBER_FLAGS: Final = (("maxPods", "max-pods"), ("podsPerCore", "pods-per-core"))
_MAP_FLAGS: Final = (
    ("systemReserved", "system-reserved", "="),
    ("kubeReserved", "kube-reserved", "="),
    ("evictionHard", "eviction-hard", "<"),
    ("evictionSoft", "eviction-soft", "<"),
    ("evictionSoftGracePeriod", "eviction-soft-grace-period", "="),
)
_LATE_NUMBER_FLAGS: Final = (
    ("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period"),
    ("imageGCHighThresholdPercent", "image-gc-high-threshold"),
    ("imageGCLowThresholdPercent", "image-gc-low-threshold"),
)


def _joined(values: Mapping[str, Any], separator: str) -> str:
    return ",".join(f"{key}{separator}{values[key]}" for key in sorted(values))


def _label_flag(node_labels: Mapping[str, str]) -> str:
    return f'--node-labels="{_joined(node_labels, "=")}"'


def _al2023_parts(custom: str) -> list[MimePart]:
    """Return `spec.userData` as MIME parts; text that is not MIME is a NodeConfig or a script."""
    return mime_parts(custom, _NODE_CONFIG if _is_node_config(custom) else SHELL_SCRIPT)


def _is_node_config(text: str) -> bool:
    """Whether the text is a YAML mapping, which JSON is as well, whose apiVersion is that of NodeConfigs."""
    if _NODE_CONFIG_API not in text or is_mime(text):
        return False
    import yaml  # noqa: PLC0415 - 30 ms, only for texts that may be a NodeConfig

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = next(iter(yaml.load_all(text, Loader=loader)), None)
    except (yaml.YAMLError, ValueError, RecursionError):
        return False
    return isinstance(document, Mapping) and str(document.get("apiVersion", "")).startswith(_NODE_CONFIG_API)


class Bootstrap(Struct, frozen=True, kw_only=True):
    """The inputs of user data. `kubelet` is `spec.kubelet` with maxPods, and clusterDNS if it is known."""

    family: AmiFamily
    cluster_name: str
    cluster_endpoint: str
    cluster_ca: str
    service_cidr: str
    kubelet: Mapping[str, Any]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    custom: str = ""
    raid0: bool = False
    ami_name: str = ""


def node_labels(claim: NodeClaim, capacity_type: str, family: AmiFamily) -> dict[str, str]:
    """Return the labels with which the kubelet registers its Node (`kubelet_labels`); a user's own image syncs taints itself."""
    if family is CUSTOM:
        return kubelet_labels(claim, {labels.CAPACITY_TYPE: capacity_type})
    return kubelet_labels(claim, {labels.CAPACITY_TYPE: capacity_type, labels.DO_NOT_SYNC_TAINTS: "true"})


_tomllib: Final[Any] = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
_VERSION: Final = re.compile(r"v(\d+)\.(\d+)\.")
_BINDS_BY_DEFAULT: Final = (1, 46)  # since this version, `ephemeral-storage bind` has default directories
_LOCAL_DISKS: Final = "000-mount-instance-storage"  # the name of the bootstrap command, which is also Karpenter's
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
    """Return Bottlerocket's settings: the user's TOML, overridden by ours.

    Raises:
        ValueError: The user's part is not TOML.
    """
    document = _parsed_toml(bootstrap.custom)
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
        _section(settings, "bootstrap-commands")[_LOCAL_DISKS] = _mount_local_disks(bootstrap.ami_name)
    return document


def _parsed_toml(custom: str) -> dict[str, Any]:
    document: dict[str, Any] = _tomllib.loads(custom)
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
    """Return the command that mounts local disks at every boot."""
    version = _VERSION.search(ami_name)
    has_defaults = version is not None and (int(version[1]), int(version[2])) >= _BINDS_BY_DEFAULT
    bind = ["apiclient", "ephemeral-storage", "bind", *([] if has_defaults else _DIRECTORIES)]
    return {"commands": [["apiclient", "ephemeral-storage", "init"], bind], "essential": True, "mode": "always"}


def _as_toml(settings: Mapping[str, Any]) -> str:
    """Return the settings as TOML with sorted keys: launch templates are named by a digest of their user data."""
    import tomli_w  # noqa: PLC0415 - only Bottlerocket needs it

    return tomli_w.dumps(_with_sorted_keys(settings))


def _with_sorted_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_sorted_keys(value[key]) for key in sorted(value)}
    return [_with_sorted_keys(item) for item in value] if isinstance(value, list) else value
