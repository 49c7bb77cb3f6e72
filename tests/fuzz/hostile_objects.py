"""Hostile objects of every kind that a step reads, as JSON, drawn by seed: an API server admits them, but no user would mean them.

The fields are those of the product's Structs; each is set or missing, and its values are extremes: amounts up to 10^3000 and down to
10^-999, durations of 400 digits, times from the year 1 to 9999, long and non-ASCII texts, wide lists, contradictory selectors. Kinds
that are validated by models are drawn from bodies with the same extremes.

They do no harm that Kubernetes allows: selectors reach only their own namespace, DaemonSets are small or beyond any node, and
pods run only on nodes where they block nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, get_args

from msgspec import inspect

from journeyman.core.api import dra, labels, objects, storage, workloads
from journeyman.core.api.node_disruption import Method
from tests.helpers.builders import CLASS, CLASS_LABEL, CLASS_REF, node_class_body

NAMESPACE = "hostile"
USED_NODES = ("node-busy", "node-leaving", "node-spot")
"""Nodes of the healthy cluster on which another pod blocks nothing."""

HUGE_AMOUNTS = (
    "9E",
    "10E",
    "16Ei",
    "1e99",
    "9999999999999E",
    "9223372036854775807",
    "9223372036854775808",
    "1e19",
    "7E",
    "1e999",
    "9" * 3000,
)
TINY_AMOUNTS = (
    "0",
    "1n",
    "1e-99",
    "1e-999",
    "0.0000000001",
    "1u",
    "1m",
    ".5",
    "100m",
    "1",
    "1Ki",
    "1.5Gi",
    "1e3",
    "0.1",
)
DURATIONS = (
    "0s",
    "1s",
    "1h",
    "2562047h",
    "2562048h",
    "99999999h",
    "9" * 60 + "h",
    "9" * 5000 + "h",
    "0" * 5000 + "1h",
    "1m1m1m",
    "720h",
    "Never",
    "3h10s",
)
GO_DURATIONS = (
    "true",
    "false",
    "99999999h",
    "9" * 400 + "h",
    "9" * 9999 + "h",
    ".5h",
    "-5h",
    "1h30m",
    "x",
    "",
    "1e3h",
    "0",
)
TIMES = (
    "0001-01-01T00:00:00Z",
    "1969-12-31T23:59:59Z",
    "2026-03-02T20:59:59Z",
    "2026-03-02T21:00:00.123456Z",
    "2262-04-11T23:47:16Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-14:00",
    "0001-01-01T00:00:00+14:00",
)
INTEGERS = (0, 1, -1, 2, 7, 300, 2**31 - 1, -(2**31), 2**32, 2**53 + 1, 2**63 - 1, -(2**63))
SMALL_INTEGERS = (0, 1, 2, 3, 100, 2**31 - 1)
TEXTS = (
    "",
    "a",
    "größer",
    "日本",
    "x" * 253,
    'a"\\\n\u2028b',
    "\x00",
    "-",
    "0",
    "9" * 400,
    "true",
    "null",
    "{}",
    "%s",
    "a/b",
)
VALUES = ("", "a", "b", "spot", "on-demand", "x" * 63, "0", "9" * 63, "1.5", "A_b.c", "amd64", "linux", "m", "l")
KEYS = (
    labels.HOSTNAME,
    labels.ZONE,
    labels.INSTANCE_TYPE,
    labels.CAPACITY_TYPE,
    labels.ARCH,
    labels.OS,
    labels.NODEPOOL,
    labels.REGION,
    CLASS_LABEL,
    "app",
    "example.com/a",
    "x" * 63,
    f"{'a' * 60}.example.com/{'b' * 63}",
    "karpenter.k8s.aws/instance-cpu",
)
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte", "in", "")
RESOURCES = ("cpu", "memory", "pods", "ephemeral-storage", "nvidia.com/gpu", "hugepages-2Mi", "example.com/gadget")
SCHEDULES = (
    "* * * * *",
    "@daily",
    "0 0 30 2 *",
    "0 0 29 2 *",
    "*/7 3-5 1,15 * 1-5",
    "59 23 31 12 7",
    "@hourly",
    "0 0 L * *",
)
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "operator": OPERATORS,
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
    "status": ("True", "False", "Unknown", ""),
    "phase": ("Pending", "Running", "Succeeded", "Failed", "Unknown", "", "Lost", "Bound"),
    "whenUnsatisfiable": ("DoNotSchedule", "ScheduleAnyway"),
    "topologyKey": KEYS,
    "key": KEYS,
    "protocol": ("TCP", "UDP", "SCTP", ""),
    "hostIP": ("", "0.0.0.0", "::", "10.0.0.1", "x"),
    "restartPolicy": ("", "Always", "Never"),
    "nodeAffinityPolicy": ("Honor", "Ignore", None),
    "nodeTaintsPolicy": ("Honor", "Ignore", None),
    "unhealthyPodEvictionPolicy": ("", "AlwaysAllow", "IfHealthyBudget"),
    "volumeBindingMode": ("Immediate", "WaitForFirstConsumer", ""),
    "priorityClassName": ("", "system-node-critical", "system-cluster-critical", "x"),
    "schedulerName": ("default-scheduler", "other"),
    "weight": (1, 100, 50, 0, -1, 2**31 - 1),
    "maxSkew": (1, 2, 2**31 - 1),
    "minDomains": (1, 2, 2**31 - 1, None),
    "replicas": (0, 1, 3),
    "minAvailable": (0, 1, 2**31 - 1, "0%", "50%", "100%"),
    "maxUnavailable": (0, 1, 2**31 - 1, "0%", "50%", "100%"),
    "expireAfter": DURATIONS,
    "terminationGracePeriod": DURATIONS,
    "terminationGracePeriodSeconds": (0, 1, 30, 100_000_000_000, 2**63 - 1, -1),
    "type": ("Ready", "PodScheduled", "Launched", "Registered", "Initialized", "Drained", "VolumesDetached", "Drifted"),
    "reason": ("Unschedulable", "Launched", "", "x" * 1024),
    "kind": ("ReplicaSet", "DaemonSet", "StatefulSet", "Node", "NodeClaim", "NodePool", "EC2NodeClass", "x"),
    "apiVersion": ("v1", "apps/v1", "karpenter.sh/v1", "", "x/y/z"),
}
ANNOTATIONS: Mapping[str, tuple[str, ...]] = {
    labels.DO_NOT_DISRUPT: GO_DURATIONS,
    labels.TERMINATION_TIMESTAMP: (*TIMES, "x"),
    labels.NOMINATED_AT: (*TIMES, "x"),
    labels.NODE_MISSING_SINCE: (*TIMES, "x"),
    labels.REBALANCE_RECOMMENDED_AT: (*TIMES, "x"),
    labels.PLANNED_PODS: ("a", "hostile/p:0", ",,:,", "x" * 9999, "default/none:zz"),
    labels.LAUNCH_RETRY: ("1 2026-03-02T21:00:00Z 0", "9" * 400 + " x y", "-1 9999-12-31T23:59:59Z 0", ""),
    labels.PODS_HASH: ("0-x", ""),
    labels.REPLICA_INDEX: ("0", "-1", "9" * 400, "x"),
    labels.NODE_SURCHARGE: ("1e308", "-1", "nan", "inf", "0.01", "9" * 400, "x"),
    labels.PACKING: ("price", "fewest-nodes", "x"),
    labels.REGISTRATION_HISTORY: ("1/1:SSFF", "x", ":", "1/1:" + "F" * 999),
    labels.DISRUPTION: ("none", "x"),
    labels.DRA_DRIVERS: ("a,b", ",", "x" * 300),
    labels.NODEPOOL_HASH: ("x", ""),
    labels.PAUSE_DISRUPTION: (*TIMES, "true", "false", "", "tomorrow", "x" * 9999),
    labels.PAUSE_ON_ALARMS: ("", "a,b", ",", "x" * 9999),
    labels.ALARMS: ("[]", "{", "null", "9" * 9999, '[{"name": "a", "at": "x"}]', "[" * 9999),
    labels.HIBERNATE: (
        "* * * * * / 1m",
        "@yearly / 87600h",
        "0 0 30 2 * / 1h",
        "; / ;",
        "x",
        "1 1 1 1 1 / " + "9" * 400 + "h",
    ),
    labels.TIME_ZONE: ("Europe/Berlin", "UTC", "../../etc/passwd", "/", "\x00", "x" * 9999, "größer"),
    labels.MAX_EVICTIONS_PER_DAY: ("0", "-1", "1e3", "9" * 9999, "٣", ""),
    "controller.kubernetes.io/pod-deletion-cost": ("2147483647", "-2147483648", "9" * 400, "x"),
}


ODD_METADATA = (
    ("creationTimestamp", "10000-01-01T00:00:00Z"),
    ("creationTimestamp", "0000-01-01T00:00:00Z"),
    ("creationTimestamp", None),
    ("generation", None),
    ("generation", "x"),
    ("annotations", None),
    ("annotations", {"a": None}),
    ("finalizers", None),
    ("labels", None),
)
"""Of custom resources, which are read as JSON: what no Go type checks anew, or what a later version may hold."""


described = cache(inspect.type_info)  # it evaluates all annotations of a Struct anew


class HostileObjects:
    """Draws hostile objects; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._count = 0
        self._has_ledger = False

    def draw(self) -> list[dict[str, Any]]:
        """Return one to twelve objects of any kinds."""
        kinds: list[Callable[[], Iterator[dict[str, Any]]]] = [
            self._pending_pod,
            self._pending_pod,
            self._running_pod,
            self._running_pod,
            self._node,
            self._node,
            self._daemon_set,
            self._node_pool,
            self._node_disruption,
            self._other,
            self._other,
            self._custom,
        ]
        drawn = [body for _ in range(self._dice.randint(1, 12)) for body in self._dice.choice(kinds)()]
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": {"team": "a"}}}
        return [namespace, *drawn]

    # -- kinds --------------------------------------------------------------------------------------------------------

    def _pending_pod(self) -> Iterator[dict[str, Any]]:
        body = self._namespaced(objects.POD)
        waiting = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "lastTransitionTime": self._time(),
        }
        body["spec"].pop("nodeName", None)
        body["status"] = {"phase": "Pending", "conditions": [waiting]}
        if self._rarely():
            body["status"]["nominatedNodeName"] = self._dice.choice((*USED_NODES, "none"))
        yield body

    def _running_pod(self) -> Iterator[dict[str, Any]]:
        body = self._namespaced(objects.POD)
        body["spec"]["nodeName"] = self._dice.choice((*USED_NODES, "none", f"node-hostile-{self._count}"))
        body["status"] = {**body.get("status", {}), "phase": "Running", "startTime": self._time()}
        body["status"].pop("nominatedNodeName", None)
        if self._rarely():
            body["metadata"]["deletionTimestamp"] = self._time()
        yield body

    def _daemon_set(self) -> Iterator[dict[str, Any]]:
        body = self._namespaced(objects.DAEMONSET)
        body["spec"] = {"template": {"metadata": {}, "spec": self._pod_spec(("2Mi", "1m", "0", *HUGE_AMOUNTS))}}
        yield body

    def _node(self) -> Iterator[dict[str, Any]]:
        """Yield a node, its NodeClaim, or both."""
        name = self._name()
        provider_id = self._dice.choice((f"aws:///a/i-{name}", "", "x" * 300, "aws:///"))
        node, claim = self._body(objects.NODE, f"node-{name}"), self._body(objects.NODECLAIM, name)
        node.setdefault("spec", {})["providerID"] = provider_id
        claim["spec"]["nodeClassRef"] = dict(CLASS_REF)
        claim["spec"].setdefault("requirements", [])
        claim.setdefault("status", {})["providerID"] = provider_id or f"aws:///a/i-{name}"
        own = {labels.NODEPOOL: self._dice.choice(("default", "none")), CLASS_LABEL: CLASS}
        for body in (node, claim):
            marks = {labels.REGISTERED: "true", labels.INITIALIZED: "true"} if self._often() else {}
            body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), **own, **marks}
            body["metadata"]["finalizers"] = [labels.TERMINATION_FINALIZER]
            body["metadata"].pop("ownerReferences", None)
            if self._rarely():
                body["metadata"]["deletionTimestamp"] = self._time()
        if self._often():
            done = [self._condition(type_) for type_ in ("Launched", "Registered", "Initialized")]
            claim["status"]["conditions"] = [*done, self._condition("Consolidatable")]
        is_managed, exists = self._often(), self._often()
        if is_managed:
            yield claim
        elif "taints" not in node["spec"]:  # kube-scheduler would bind the healthy pod to it
            node["spec"]["taints"] = [{"key": "hostile", "effect": "NoSchedule"}]
        if exists:
            yield node

    def _node_pool(self) -> Iterator[dict[str, Any]]:
        budgets = [
            {"nodes": self._dice.choice(("0", "100%", "2147483647", "1%")), "schedule": schedule, "duration": duration}
            for schedule, duration in zip(
                self._some(SCHEDULES), self._some(("1m", "87600h", "2562047h", "1h30m")), strict=False
            )
        ]
        body = {
            "metadata": self._metadata(),
            "spec": {
                "weight": self._dice.choice((1, 50, 100)),
                "limits": self._amounts((*HUGE_AMOUNTS, *TINY_AMOUNTS)),
                "disruption": {
                    "consolidateAfter": self._dice.choice(DURATIONS),
                    "budgets": budgets or [{"nodes": "10%"}],
                },
                "template": {
                    "metadata": {"labels": self._labels(), "annotations": self._annotations()},
                    "spec": {
                        "nodeClassRef": {**CLASS_REF, "name": self._dice.choice((CLASS, "none"))},
                        "requirements": [
                            self._requirement(min_values=True) for _ in range(self._dice.choice((0, 1, 3, 30)))
                        ],
                        "taints": [self._taint() for _ in range(self._dice.choice((0, 0, 1, 9)))],
                        "expireAfter": self._dice.choice(DURATIONS),
                        "terminationGracePeriod": self._dice.choice(DURATIONS),
                    },
                },
            },
        }
        yield {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", **self._damaged(body)}

    def _node_disruption(self) -> Iterator[dict[str, Any]]:
        candidates = [
            {
                "nodeClaim": f"hostile-{number}",
                "nodeClaimUID": "x",
                "price": "999999999999.999999999",
                "pods": ["a", "b/c-d", "/"],
            }
            for number in range(self._dice.choice((1, 2, 50)))
        ]
        body = {
            "metadata": self._metadata(),
            "spec": {
                "reason": self._dice.choice(("Empty", "Underutilized", "Drifted", "Interrupted")),
                "decision": self._dice.choice(("delete", "replace")),
                "method": self._dice.choice(get_args(Method)),
                "candidates": candidates,
                "replacements": [{"name": f"hostile-new-{self._count}"}] if self._rarely() else [],
                "createdAt": self._time(),
            },
            "status": {
                "phase": self._dice.choice(
                    (
                        "",
                        "Proposed",
                        "Validated",
                        "Replacing",
                        "Draining",
                        "Succeeded",
                        "RolledBack",
                        "Rejected",
                        "Expired",
                    )
                ),
                "startedAt": self._time(),
                "finishedAt": self._time(),
            },
        }
        yield {"apiVersion": "journeyman.dev/v1alpha1", "kind": "NodeDisruption", **self._damaged(body)}

    def _custom(self) -> Iterator[dict[str, Any]]:
        """Yield a custom resource of another kind."""
        requirements = [self._requirement() for _ in range(self._dice.choice((0, 1, 5)))]
        overlay = {
            "weight": self._dice.choice((1, 10_000)),
            "requirements": requirements,
            "priceAdjustment": self._dice.choice(("+10%", "-100%", "+999999999%", "-0.1", "x")),
            "capacity": {"example.com/gadget": self._dice.choice(HUGE_AMOUNTS)},
        }
        buffer = {
            "replicas": self._dice.choice((0, 1, 3)),
            "percentage": self._dice.choice((None, 0, 100, 2**31 - 1)),
            "podTemplateRef": {"name": "template"},
            "limits": self._amounts((*HUGE_AMOUNTS, *TINY_AMOUNTS)),
        }
        offering = {
            "instanceType": "m",
            "zone": "x",
            "capacityType": "spot",
            "until": self._time(),
            "reason": "x",
            "failures": 9,
        }
        workload = {
            "kind": "Deployment",
            "namespace": NAMESPACE,
            "name": "a",
            "evictions": [9],
            "heldUntil": self._time(),
        }
        ledger = {"hour": self._time(), "workloads": [workload], "commands": [{"name": "x", "isCounted": True}]}
        name, phase = (
            self._dice.choice(("hostile-0", "none")),
            self._dice.choice(("Running", "Completed", "Superseded")),
        )
        move = {"name": name, "nodeClaims": [name, "none"], "after": [name], "savingPerHour": "999999999999.999999999"}
        plan = {"moves": [move] * self._dice.choice((1, 2, 300)), "createdAt": self._time(), "priceBefore": "0"}
        started = {"name": name, "state": self._dice.choice(("Running", "Done", "Failed")), "nodeDisruption": "none"}
        kinds: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("karpenter.sh/v1alpha1", "NodeOverlay", {"spec": overlay}),
            ("autoscaling.x-k8s.io/v1beta1", "CapacityBuffer", {"spec": buffer}),
            ("journeyman.dev/v1alpha1", "ChurnLedger", {"status": {**ledger, "launchesUntil": self._time()}}),
            ("journeyman.dev/v1alpha1", "FleetPlan", {"spec": plan, "status": {"phase": phase, "moves": [started], "done": 2**31 - 1}}),
            ("journeyman.dev/v1alpha1", "OfferingState", {"spec": {}, "status": {"unavailable": [offering]}}),
            ("karpenter.k8s.aws/v1", "EC2NodeClass", {"spec": node_class_body()["spec"], "status": {"conditions": [self._condition("Ready")]}}),
        )  # fmt: skip
        api_version, kind, body = self._dice.choice(kinds)
        metadata = {**self._metadata(), **({"namespace": NAMESPACE} if kind == "CapacityBuffer" else {})}
        if self._rarely():
            name, value = self._dice.choice(ODD_METADATA)
            metadata[name] = value
        if kind == "ChurnLedger" and not self._has_ledger:
            metadata["name"], self._has_ledger = "cluster", True
        yield {"apiVersion": api_version, "kind": kind, "metadata": metadata, **self._damaged(body)}

    def _other(self) -> Iterator[dict[str, Any]]:
        """Yield an object of a kind that scheduling and draining read."""
        kinds: tuple[objects.Resource[Any], ...] = (
            objects.PDB,
            storage.STORAGE_CLASS,
            storage.CSI_NODE,
            storage.PERSISTENT_VOLUME,
            storage.PERSISTENT_VOLUME_CLAIM,
            storage.VOLUME_ATTACHMENT,
            dra.DEVICE_CLASS,
            dra.RESOURCE_CLAIM,
            dra.RESOURCE_SLICE,
            workloads.POD_TEMPLATE,
            workloads.DEPLOYMENT,
            workloads.REPLICA_SET,
            workloads.SERVICE,
        )
        resource = self._dice.choice(kinds)
        yield self._namespaced(resource) if resource.namespaced else self._body(resource, self._name())

    # -- parts --------------------------------------------------------------------------------------------------------

    def _namespaced(self, resource: objects.Resource[Any]) -> dict[str, Any]:
        body = self._body(resource, self._name())
        body["metadata"]["namespace"] = NAMESPACE
        return body

    def _body(self, resource: objects.Resource[Any], name: str) -> dict[str, Any]:
        drawn = self._struct(described(resource.type), 0)
        drawn.setdefault("spec", {})
        metadata = {**self._metadata(), "name": name}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **drawn, "metadata": metadata}
        if resource is objects.POD:
            amounts = (*HUGE_AMOUNTS, *TINY_AMOUNTS)
            body["spec"] = self._pod_spec(amounts)
            body["status"] = {**body.get("status", {}), "containerStatuses": [self._resized("c0", (*amounts, "-1"))]}
        return body

    def _resized(self, name: str, amounts: tuple[str, ...]) -> dict[str, Any]:
        """Return the status of a container with any resources, which a kubelet writes."""
        actual = {"requests": self._amounts(amounts)}
        return {"name": name, "allocatedResources": self._amounts(amounts), "resources": actual}

    def _pod_spec(self, amounts: tuple[str, ...]) -> dict[str, Any]:
        spec = self._struct(described(objects.PodSpec), 0)
        containers = [
            {"name": f"c{number}", "image": "pause", "resources": {"requests": self._amounts(amounts)}}
            for number in range(self._dice.choice((1, 1, 2, 40)))
        ]
        spec.pop("resources", None)
        return {
            **spec,
            "containers": containers,
            "overhead": {},
            "initContainers": containers[: self._dice.choice((0, 0, 1))],
        }

    def _name(self) -> str:
        self._count += 1
        return f"hostile-{self._count}"

    def _metadata(self) -> dict[str, Any]:
        name = self._name()
        metadata = {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "generation": self._dice.choice((0, 1, 2**63 - 1)),
            "creationTimestamp": self._time(),
            "labels": self._labels(),
            "annotations": self._annotations(),
        }
        return {key: value for key, value in metadata.items() if key in {"name", "uid"} or not self._rarely()}

    def _labels(self) -> dict[str, str]:
        drawn = {key: self._dice.choice(VALUES) for key in self._some(KEYS)}
        drawn.pop(labels.NODEPOOL, None)
        return drawn

    def _annotations(self) -> dict[str, str]:
        return {key: self._dice.choice(ANNOTATIONS[key]) for key in self._some(tuple(ANNOTATIONS))}

    def _amounts(self, amounts: tuple[str, ...]) -> dict[str, str]:
        return {key: self._dice.choice(amounts) for key in self._some(RESOURCES)}

    def _requirement(self, *, min_values: bool = False) -> dict[str, Any]:
        values = list(self._some(VALUES)) * self._dice.choice((1, 1, 1, 20))
        requirement = {"key": self._dice.choice(KEYS), "operator": self._dice.choice(OPERATORS[:8]), "values": values}
        return {**requirement, "minValues": 50} if min_values and self._rarely() else requirement

    def _taint(self) -> dict[str, Any]:
        return {"key": self._dice.choice(KEYS), "value": self._dice.choice(VALUES), "effect": "NoSchedule"}

    def _condition(self, type_: str) -> dict[str, Any]:
        status = self._dice.choice(("True", "True", "False", "Unknown"))
        return {
            "type": type_,
            "status": status,
            "reason": "x",
            "message": self._dice.choice(TEXTS),
            "lastTransitionTime": self._time(),
        }

    def _time(self) -> str:
        return self._dice.choice(TIMES)

    def _some(self, values: tuple[Any, ...]) -> list[Any]:
        return self._dice.sample(values, self._dice.choice((0, 1, 1, 2, min(5, len(values)))))

    def _rarely(self) -> bool:
        return self._dice.random() < 0.2

    def _often(self) -> bool:
        return self._dice.random() < 0.8

    # -- any field ----------------------------------------------------------------------------------------------------

    def _damaged(self, value: Any) -> Any:
        """Return a body of which now and then a leaf is null or another extreme, as a client that skips validation writes it."""
        if isinstance(value, dict):
            kept = {key: item for key, item in value.items() if self._dice.random() > 0.02 or key == "metadata"}
            return {key: item if key == "metadata" else self._damaged(item) for key, item in kept.items()}
        if isinstance(value, list):
            return [self._damaged(item) for item in value]
        if self._dice.random() > 0.02:
            return value
        return self._dice.choice((None, 0, -1, 2**63 - 1, "", "x", "9" * 400, [], {}, True, "9" * 9999))

    def _struct(self, type_: Any, depth: int) -> dict[str, Any]:
        body = {}
        for field in type_.fields:
            if field.encode_name == "metadata":
                continue
            if field.required or (depth < 9 and self._dice.random() < 0.5):
                value = self._value(field.encode_name, field.type, depth + 1)
                if value is not None:
                    body[field.encode_name] = value
        return body

    def _value(self, name: str, type_: Any, depth: int) -> Any:
        if name == "namespaceSelector":
            return {"matchLabels": {"team": "none"}}
        if name in {"labels", "matchLabels", "nodeSelector"}:
            return self._labels()
        if name == "annotations":
            return self._annotations()
        if name == "namespaces":
            return [NAMESPACE]
        if name in CHOICES and not isinstance(type_, inspect.StructType):
            return self._dice.choice(CHOICES[name])
        if name == "values":
            return list(self._some(VALUES)) * self._dice.choice((1, 1, 1, 20))
        return self._of_type(name, type_, depth)

    def _of_type(self, name: str, type_: Any, depth: int) -> Any:
        if isinstance(type_, inspect.StructType):
            return self._struct(type_, depth)
        if isinstance(type_, inspect.UnionType):
            options = [option for option in type_.types if not isinstance(option, inspect.NoneType)]
            return self._value(name, self._dice.choice(options), depth)
        if isinstance(type_, inspect.VarTupleType | inspect.ListType):
            count = self._dice.choice((0, 1, 1, 2, 3 if depth > 4 else 12))
            return [self._value(name, type_.item_type, depth + 1) for _ in range(count)]
        if isinstance(type_, inspect.DictType):
            if isinstance(type_.value_type, inspect.UnionType):
                return self._amounts((*HUGE_AMOUNTS, *TINY_AMOUNTS))
            return {self._dice.choice(KEYS): self._of_type("", type_.value_type, depth + 1) for _ in range(2)}
        if isinstance(type_, inspect.IntType):
            return self._dice.choice(INTEGERS)
        if isinstance(type_, inspect.BoolType):
            return self._dice.random() < 0.5
        if isinstance(type_, inspect.DateTimeType):
            return self._time()
        if isinstance(type_, inspect.FloatType):
            return self._dice.choice((0.0, 1.5, 1e308, -1.0))
        if isinstance(type_, inspect.StrType):
            return self._dice.choice(TEXTS)
        return self._dice.choice((None, 0, "x", [], {}))
