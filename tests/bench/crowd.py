"""Fills a real API server with many realistic objects: nodes, their NodeClaims, and pods of 3 to 5 kB.

The objects are written to etcd as JSON, which the API server reads as well as its own protobuf. That is twenty times as fast
as by requests; the API server's watches of etcd deliver them. The same seed makes the same objects.
"""

from __future__ import annotations

import base64
import json
import random
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import urllib3

from journeyman.core.api.labels import NODEPOOL
from tests.helpers import builders

JSONDict = dict[str, Any]
APPS = 200
NAMESPACES = ("checkout", "search", "media", "data", "platform")
CREATED = "2026-11-20T08:15:00Z"
_PER_TRANSACTION = 100  # etcd's limits for one transaction: 128 operations and 1.5 MB


class Crowd:
    """Generates the objects by kind. `random` draws the ids, addresses and names."""

    def __init__(self, nodes: int, seed: int = 42) -> None:
        self._random = random.Random(seed)
        self._nodes = [f"ip-10-{i // 250}-{i % 250}-17.eu-west-1.compute.internal" for i in range(nodes)]

    def nodes(self) -> Iterator[JSONDict]:
        """Return nodes of 7 kB: two dozen images, five conditions."""
        for number, name in enumerate(self._nodes):
            zone = f"eu-west-1{'abc'[number % 3]}"
            size = {"cpu": "16", "memory": "64431352Ki", "pods": "234", "ephemeral-storage": "104779756Ki"}
            labels = {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "m7i.4xlarge",
                "topology.kubernetes.io/region": "eu-west-1",
                "topology.kubernetes.io/zone": zone,
                "karpenter.sh/capacity-type": "spot" if number % 2 else "on-demand",
                "karpenter.sh/registered": "true",
                "karpenter.sh/initialized": "true",
                NODEPOOL: builders.POOL,
            }
            conditions = [
                _condition(type_, "True" if type_ == "Ready" else "False", lastHeartbeatTime=CREATED)
                for type_ in ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready")
            ]
            images = [
                {
                    "names": [f"registry.example.com/base@sha256:{self._hex(64)}"],
                    "sizeBytes": self._random.randrange(10**9),
                }
                for _ in range(24)
            ]
            status = {
                "capacity": size,
                "allocatable": {**size, "cpu": "15890m", "memory": "61345144Ki"},
                "conditions": conditions,
                "addresses": [{"type": "InternalIP", "address": self._ip()}, {"type": "Hostname", "address": name}],
                "nodeInfo": {"kubeletVersion": "v1.36.3", "osImage": "Amazon Linux 2023", "architecture": "amd64"},
                "images": images,
            }
            metadata = {**self._metadata(name, labels, ["kubelet", "aws-node", "journeyman"]), "annotations": {}}
            spec = {"providerID": f"aws:///{zone}/i-{number:017x}"}
            yield {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}

    def claims(self) -> Iterator[JSONDict]:
        """Return a NodeClaim for each node."""
        for number, name in enumerate(self._nodes):
            body = builders.claim_body(
                f"{builders.POOL}-{number:05d}", provider_id=f"aws:///eu-west-1a/i-{number:017x}"
            )
            metadata = {**self._metadata(body["metadata"]["name"], body["metadata"].get("labels", {}), ["journeyman"])}
            types = ("Launched", "Registered", "Initialized", "Consolidatable", "Ready")
            status = {**body.get("status", {}), "nodeName": name, "conditions": [_condition(t, "True") for t in types]}
            yield {**body, "metadata": {**body["metadata"], **metadata}, "status": status}

    def csi_nodes(self) -> Iterator[JSONDict]:
        """Return a CSINode for each node."""
        for name in self._nodes:
            driver = {"name": "ebs.csi.aws.com", "nodeID": f"i-{self._hex(17)}", "allocatable": {"count": 26}}
            spec = {"drivers": [{**driver, "topologyKeys": ["topology.ebs.csi.aws.com/zone"]}]}
            metadata = self._metadata(name, {}, ["kubelet"])
            yield {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": metadata, "spec": spec}

    def pods(self, count: int, *, start: int = 0) -> Iterator[JSONDict]:
        """Return running pods, distributed over the nodes; one in a hundred is pending."""
        for number in range(start, start + count):
            node = "" if number % 100 == 99 else self._nodes[number % len(self._nodes)]
            yield self._pod(number, node)

    def _pod(self, number: int, node: str) -> JSONDict:
        app = f"app-{number % APPS}"
        template = f"{number % APPS * 7919:08x}"
        labels = {"app.kubernetes.io/name": app, "app.kubernetes.io/part-of": "shop", "pod-template-hash": template}
        metadata = {
            **self._metadata(f"{app}-{template}-{number:06d}", labels, ["kubelet"]),
            "namespace": NAMESPACES[number % APPS % len(NAMESPACES)],
            "generateName": f"{app}-{template}-",
            "annotations": {"prometheus.io/scrape": "true", "checksum/config": self._hex(64)},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{app}-{template}",
                    "uid": str(uuid.UUID(int=number % APPS)),
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": _pod_spec(app, number, node),
            "status": self._pod_status(app) if node else _WAITING,
        }

    def _pod_status(self, app: str) -> JSONDict:
        container = {
            "name": "main",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "image": f"registry.example.com/{app}:1.2.3",
            "imageID": f"registry.example.com/{app}@sha256:{self._hex(64)}",
            "containerID": f"containerd://{self._hex(64)}",
            "state": {"running": {"startedAt": CREATED}},
        }
        address = self._ip()
        types = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        return {
            "phase": "Running",
            "conditions": [_condition(type_, "True") for type_ in types],
            "hostIP": self._ip(),
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": CREATED,
            "containerStatuses": [container],
            "qosClass": "Burstable",
        }

    def _metadata(self, name: str, labels: JSONDict, managers: Iterable[str]) -> JSONDict:
        fields = {"f:metadata": {"f:labels": {".": {}, **{f"f:{key}": {} for key in labels}}}, **_FIELDS}
        return {
            "name": name,
            "uid": str(uuid.UUID(int=self._random.getrandbits(128), version=4)),
            "creationTimestamp": CREATED,
            "labels": labels,
            "managedFields": [
                {"manager": m, "operation": "Update", "apiVersion": "v1", "time": CREATED, "fieldsType": "FieldsV1"}
                | {"fieldsV1": fields}
                for m in managers
            ],
        }

    def _hex(self, digits: int) -> str:
        return f"{self._random.getrandbits(digits * 4):0{digits}x}"

    def _ip(self) -> str:
        return "10." + ".".join(str(self._random.randrange(256)) for _ in range(3))


def _condition(type_: str, status: str, **more: str) -> JSONDict:
    since = {"lastTransitionTime": CREATED, "reason": f"{type_}Is{status}", "message": ""}
    return {"type": type_, "status": status, **since, **more}


_WAITING: JSONDict = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1000 nodes are available: 1000 Insufficient cpu.",
            "lastTransitionTime": CREATED,
        }
    ],
}
_FIELDS: JSONDict = {
    "f:spec": {
        "f:containers": {
            'k:{"name":"main"}': {f"f:{key}": {} for key in ("env", "image", "ports", "resources", "volumeMounts")}
        },
        "f:tolerations": {},
        "f:volumes": {},
    }
}


def _pod_spec(app: str, number: int, node: str) -> JSONDict:
    container = {
        "name": "main",
        "image": f"registry.example.com/{app}:1.2.3",
        "env": [{"name": f"SETTING_{n}", "value": f"{app}-value-{n}"} for n in range(6)]
        + [{"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": f"{100 + number % APPS * 5}m", "memory": f"{256 + number % APPS * 8}Mi"},
            "limits": {"memory": f"{256 + number % APPS * 8}Mi"},
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 5},
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/app"},
            {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True},
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": app}},
    }
    away = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    spec: JSONDict = {
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": app, "defaultMode": 420}},
            {"name": "token", "projected": {"sources": sources, "defaultMode": 420}},
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": app,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000},
        "schedulerName": "default-scheduler",
        "tolerations": [{**away, "key": f"node.kubernetes.io/{what}"} for what in ("not-ready", "unreachable")],
        "topologySpreadConstraints": [spread],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    return {**spec, "nodeName": node} if node else spec


_FOLDERS = {
    "Node": "minions",
    "NodeClaim": "karpenter.sh/nodeclaims",
    "CSINode": "csinodes",
    "Pod": "pods",
    "DaemonSet": "daemonsets",
    "Deployment": "deployments",
    "PersistentVolume": "persistentvolumes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "ReplicaSet": "replicasets",
    "Service": "services/specs",
    "StatefulSet": "statefulsets",
}


def put(etcd: str, objects: Iterable[JSONDict]) -> None:
    """Write objects to etcd under the keys that the API server reads."""
    http = urllib3.PoolManager()
    batch: list[JSONDict] = []
    for obj in objects:
        batch.append({"requestPut": {"key": _base64(_key(obj)), "value": _base64(json.dumps(obj))}})
        if len(batch) == _PER_TRANSACTION:
            _commit(http, etcd, batch)
            batch = []
    if batch:
        _commit(http, etcd, batch)
    http.clear()


def _commit(http: urllib3.PoolManager, etcd: str, batch: list[JSONDict]) -> None:
    answer = http.request("POST", f"{etcd}/v3/kv/txn", json={"success": batch})
    assert answer.status == 200, answer.data


def _key(obj: JSONDict) -> str:
    metadata = obj["metadata"]
    place = [metadata["namespace"]] if metadata.get("namespace") else []
    return "/".join(["/registry", _FOLDERS[obj["kind"]], *place, metadata["name"]])


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
