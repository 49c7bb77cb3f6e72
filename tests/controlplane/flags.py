"""The flags of each program: one server each on the loopback interface, quick to start, without durable data.

Flags that change behaviour keep their defaults: admission (except for service accounts), RBAC, watch cache, priority and
fairness, feature gates, scheduler profile.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct

_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "ephemeral-volume-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
)
_QUERIES_PER_SECOND = 500  # the default of 20 or 50 would make tests wait for the client's rate limit


class Files(Struct, frozen=True, kw_only=True):
    """The files that the programs read at their start."""

    authority: Path
    certificate: Path
    key: Path
    service_account_key: Path


def etcd(data: Path, port: int) -> list[str]:
    """Return the flags for etcd; it never waits for a disk."""
    client = f"http://127.0.0.1:{port}"
    return [
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        "--listen-peer-urls=http://127.0.0.1:0",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def kube_apiserver(files: Files, etcd_port: int, port: int, token_file: Path, webhook_file: Path) -> list[str]:
    """Return the flags for an API server with RBAC, in which pods need no service account."""
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        *_serving_flags(files, port),
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",  # no client uses the service `kubernetes`
        "--service-cluster-ip-range=10.0.0.0/16",
        "--authorization-mode=RBAC",
        f"--client-ca-file={files.authority}",
        f"--token-auth-file={token_file}",
        f"--authentication-token-webhook-config-file={webhook_file}",
        "--authentication-token-webhook-version=v1",
        "--authentication-token-webhook-cache-ttl=1s",  # the cache also holds rejections; tests add and revoke tokens
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={files.service_account_key}",
        f"--service-account-signing-key-file={files.service_account_key}",
        "--allow-privileged=true",
        "--disable-admission-plugins=ServiceAccount",
    ]


def kube_scheduler(files: Files, port: int, kubeconfig: Path, folder: Path) -> list[str]:
    """Return the flags for a scheduler with the default profile, without leader election and with high client rate limits."""
    settings = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(kubeconfig),
            "qps": _QUERIES_PER_SECOND,
            "burst": 2 * _QUERIES_PER_SECOND,
        },
        "leaderElection": {"leaderElect": False},
    }
    config = folder / "kube-scheduler.json"
    config.write_text(json.dumps(settings))
    return [f"--config={config}", *_serving_flags(files, port), *_delegated_auth_flags(kubeconfig)]


def kube_controller_manager(files: Files, port: int, kubeconfig: Path) -> list[str]:
    """Return the flags for the controllers that workloads need, each with its own service account, as kubeadm sets them up.

    Args:
        files: Keys and certificates.
        port: The port for health and metrics.
        kubeconfig: The controller manager's identity.
    """
    return [
        f"--kubeconfig={kubeconfig}",
        *_serving_flags(files, port),
        *_delegated_auth_flags(kubeconfig),
        f"--controllers={','.join(_CONTROLLERS)}",
        "--use-service-account-credentials=true",
        f"--root-ca-file={files.authority}",
        f"--service-account-private-key-file={files.service_account_key}",
        "--leader-elect=false",
        f"--kube-api-qps={_QUERIES_PER_SECOND}",
        f"--kube-api-burst={2 * _QUERIES_PER_SECOND}",
    ]


def _serving_flags(files: Files, port: int) -> list[str]:
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={files.certificate}",
        f"--tls-private-key-file={files.key}",
    ]


def _delegated_auth_flags(kubeconfig: Path) -> list[str]:
    return [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
