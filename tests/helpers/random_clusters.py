"""Small random clusters as scenarios: every kind of rule, a few at a time, the same for the same seed.

Unlike `tests.differential.clusters` they need no Hypothesis, include devices (dynamic resource allocation), and are drawn in
a millisecond, so that the plans of many of them can be recorded.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from journeyman.core.api.labels import PLANNED_PODS
from tests.helpers.workloads import ARCH, CAPACITY_TYPE, HOSTNAME, ZONE, in_

JSONDict = dict[str, Any]
ZONES = ("a", "b", "c")
INSTANCE_TYPE, NODEPOOL = "node.kubernetes.io/instance-type", "karpenter.sh/nodepool"
FAMILY, CPU = "karpenter.k8s.aws/instance-family", "karpenter.k8s.aws/instance-cpu"
RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"
TEAM, RACK, GPU = "team", "example.com/rack", "nvidia.com/gpu"
DISK_DRIVER, GPU_DRIVER = "ebs.csi.aws.com", "gpu.example.com"
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
FAMILIES = (("m", 4, 0.05, "amd64"), ("c", 2, 0.043, "amd64"), ("r", 8, 0.066, "amd64"), ("t", 4, 0.041, "arm64"))
KINDS = (
    ("spreads", "affinity", "apart", "nodes", "selectors", "taints", "preferences"),
    ("devices", "nodes", "volumes", "ports", "gpus", "daemons", "selectors"),
    ("nodes", "waiting", "volumes", "ports", "daemons", "apart", "spreads", "unavailable"),
    ("limits", "weights", "min_values", "reservations", "overlays", "preferences", "taints", "selectors", "many"),
)
"""Features that meet often, by the seed modulo four; those of the other kinds are rare."""
OFTEN, RARELY = 0.65, 0.07


def scenario(seed: int) -> JSONDict:
    """Return the cluster of a seed."""
    return _Cluster(seed).scenario()


class _Cluster:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        features = sorted({feature for kind in KINDS for feature in kind})
        self.has = {f for f in features if self.rng.random() < (OFTEN if f in KINDS[seed % len(KINDS)] else RARELY)}
        self.apps = [f"app{n}" for n in range(self.rng.randint(1, 5))]
        self.zones = ZONES[: self.rng.choice((3, 3, 2))]

    def chance(self, percent: int) -> bool:
        return self.rng.random() * 100 < percent

    def some(self, *values: str) -> list[str]:
        """Return one or more of the values, in their order."""
        chosen = set(self.rng.sample(values, self.rng.randint(1, len(values))))
        return [value for value in values if value in chosen]

    def scenario(self) -> JSONDict:
        """Return the whole cluster."""
        types = [
            self._instance_type(*family, cpus)
            for family in self.rng.sample(FAMILIES, self.rng.randint(1, 3))
            for cpus in sorted(self.rng.sample((2, 4, 8, 16, 32), self.rng.randint(2, 4)))
        ]
        pools = [self._node_pool(f"p{n}") for n in range(self.rng.choice((1, 1, 2, 3)))]
        workloads = {app: self._spec(app) for app in self.apps}
        pods = [pod for app, spec in workloads.items() for pod in self._replicas(app, spec)]
        objects = [*pools, *pods]
        if "daemons" in self.has:
            objects += [self._daemon_set(n) for n in range(self.rng.randint(1, 2))]
        if "nodes" in self.has:
            for n in range(self.rng.randint(1, 5)):
                objects += self._node(n, self.rng.choice(pools), self.rng.choice(types), workloads)
        if "overlays" in self.has:
            objects += [self._overlay(n) for n in range(self.rng.randint(1, 3))]
        objects += self._storage(objects) if "volumes" in self.has else []
        objects += self._claims(objects) if "devices" in self.has else []
        options = {
            "preferencePolicy": self.rng.choice(("Respect", "Respect", "Respect", "Ignore", "WhenFree")),
            "minValuesPolicy": self.rng.choice(("Strict", "BestEffort")),
            "ignoreDRARequests": False,
        }
        return {"name": f"random-{self.seed}", "instanceTypes": types, "objects": objects, "options": options}

    # --- instance types and NodePools

    def _instance_type(self, family: str, gib: int, price: float, arch: str, cpus: int) -> JSONDict:
        name = f"{family}.{cpus}x"
        offerings = [o for zone in self.zones for o in self._offerings(name, zone, price * cpus)]
        kinds = sorted(
            {kind for o in offerings for r in o["requirements"] if r["key"] == CAPACITY_TYPE for kind in r["values"]}
        )
        capacity = {"cpu": str(cpus), "memory": f"{cpus * gib}Gi", "pods": self.rng.choice(("110", "29", "8", "4"))}
        if "gpus" in self.has and family == "m":
            capacity[GPU] = str(max(1, cpus // 4))
        return {
            "name": name,
            "requirements": [
                *(in_(INSTANCE_TYPE, name), in_(ARCH, arch), in_("kubernetes.io/os", "linux"), in_(ZONE, *self.zones)),
                *(in_(CAPACITY_TYPE, *kinds), in_(FAMILY, family), in_(CPU, str(cpus))),
            ],
            "offerings": offerings,
            "capacity": capacity,
            "overhead": {"cpu": "80m", "memory": "300Mi"},
            "resourceSlices": self._slices(cpus) if "devices" in self.has and self.chance(70) else [],
        }

    def _offerings(self, name: str, zone: str, price: float) -> Iterator[JSONDict]:
        kinds = {"on-demand": self.rng.uniform(0.95, 1.05)}
        if self.chance(75):
            kinds["spot"] = self.rng.uniform(0.25, 0.7)
        for kind, factor in kinds.items():
            available = "unavailable" not in self.has or self.chance(70)
            requirements = [in_(ZONE, zone), in_(CAPACITY_TYPE, kind)]
            yield {"requirements": requirements, "price": round(price * factor, 5), "available": available}
        if "reservations" in self.has and self.chance(40):
            reserved = [in_(ZONE, zone), in_(CAPACITY_TYPE, "reserved"), in_(RESERVATION, f"cr-{name}-{zone}")]
            yield {"requirements": reserved, "price": price / 1e6, "reservationCapacity": self.rng.randint(1, 3)}

    def _node_pool(self, name: str) -> JSONDict:
        requirements = [in_(CAPACITY_TYPE, *self.some("on-demand", "spot"), "reserved")] if self.chance(70) else []
        if self.chance(25):
            requirements.append(
                {"key": ZONE, "operator": self.rng.choice(("In", "NotIn")), "values": self.some("a", "b")}
            )
        if self.chance(20):
            operator = self.rng.choice(("Gt", "Gte", "Lt", "Lte"))
            requirements.append(
                {
                    "key": CPU,
                    "operator": operator,
                    "values": [self.rng.choice(("2", "4") if operator[0] == "G" else ("8", "32"))],
                }
            )
        if "selectors" in self.has and self.chance(60):
            requirements.append(in_(TEAM, *self.some("red", "blue")))
        if "spreads" in self.has and self.chance(30):
            requirements.append(in_(RACK, *self.some("r1", "r2", "r3")))
        if "min_values" in self.has and self.chance(60):
            key = self.rng.choice((INSTANCE_TYPE, FAMILY, ZONE))
            requirements.append({"key": key, "operator": "Exists", "minValues": self.rng.choice((1, 2, 2, 3))})
        node_class = {"group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default"}
        spec: JSONDict = {"template": {"spec": {"nodeClassRef": node_class, "requirements": requirements}}}
        if "taints" in self.has and self.chance(60):
            effect = self.rng.choice(("NoSchedule", "PreferNoSchedule"))
            spec["template"]["spec"]["taints"] = [{"key": "dedicated", "value": "x", "effect": effect}]
        if "limits" in self.has and self.chance(70):
            key = self.rng.choice(("cpu", "cpu", "memory", "nodes"))
            amounts = {"cpu": ("6", "20", "60"), "memory": ("30Gi", "90Gi"), "nodes": ("2", "4", "9")}
            spec["limits"] = {key: self.rng.choice(amounts[key])}
        if "weights" in self.has:
            spec["weight"] = self.rng.choice((1, 5, 10))
        return _object("NodePool", name, "karpenter.sh/v1", spec=spec)

    def _daemon_set(self, number: int) -> JSONDict:
        spec: JSONDict = {"containers": [_container(self.rng.choice(("50m", "200m", "500m")), "128Mi")]}
        spec["tolerations"] = [{"operator": "Exists"}] if self.chance(60) else []
        if self.chance(40):
            spec["nodeSelector"] = self.rng.choice(({CAPACITY_TYPE: "spot"}, {ARCH: "amd64"}, {ZONE: "a"}))
        if self.chance(30):
            spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
        template = {"metadata": {"labels": {"daemon": str(number)}}, "spec": spec}
        return _object("DaemonSet", f"d{number}", "apps/v1", namespace="kube-system", spec={"template": template})

    def _overlay(self, number: int) -> JSONDict:
        change = self.rng.choice(({"priceAdjustment": "-40%"}, {"priceAdjustment": "+0.1"}, {"price": "0.02"}))
        key, value = self.rng.choice(((ZONE, "a"), (CAPACITY_TYPE, "spot"), (FAMILY, "m"), (NODEPOOL, "p0")))
        spec = {"requirements": [in_(key, value)], "weight": number + 1, **change}
        return _object("NodeOverlay", f"o{number}", "karpenter.sh/v1alpha1", spec=spec)

    # --- pods

    def _replicas(self, app: str, spec: JSONDict) -> Iterator[JSONDict]:
        counts = (20, 40, 60) if "many" in self.has else (1, 1, 2, 3, 4, 6)
        for n in range(self.rng.choice(counts)):
            yield self._pod(f"{app}-{n}", app, spec)

    def _pod(self, name: str, app: str, spec: JSONDict, **status: Any) -> JSONDict:
        own = dict(spec)
        if "volumes" in spec:
            own["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": self._claim_of(name, app)}}]
        if "resourceClaims" in spec:
            own["resourceClaims"] = [{"name": "c", "resourceClaimName": self._claim_of(name, app)}]
        labels = {"app": app, "rev": str(len(name) % 2)}
        return _object("Pod", name, namespace="default", metadata={"labels": labels}, spec=own, **status)

    def _claim_of(self, name: str, app: str) -> str:
        """Return the claim that a pod uses: its own, or its workload's for every third workload."""
        return app if int(app[-1]) % 3 == 2 else name

    def _spec(self, app: str) -> JSONDict:
        cpu = self.rng.choice(("100m", "300m", "500m", "500m", "1", "1500m", "3", "7"))
        container = _container(cpu, self.rng.choice(("128Mi", "500Mi", "1Gi", "3Gi", "9Gi", "40Gi")))
        if "gpus" in self.has and self.chance(40):
            container["resources"]["requests"][GPU] = "1"
        if "ports" in self.has and self.chance(60):
            address = {"hostIP": "10.0.0.1"} if self.chance(30) else {}
            container["ports"] = [{"containerPort": 80, "hostPort": self.rng.choice((80, 443)), **address}]
        spec: JSONDict = {"containers": [container], "affinity": self._affinity(app)}
        if "selectors" in self.has and self.chance(50):
            pairs = {ZONE: self.zones[-1], CAPACITY_TYPE: "on-demand", ARCH: "amd64", TEAM: "red", FAMILY: "m"}
            key = self.rng.choice((ZONE, ZONE, *sorted(pairs)))
            spec["nodeSelector"] = {key: pairs[key]}
        if "taints" in self.has and self.chance(75):
            spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        if "spreads" in self.has and self.chance(80):
            spec["topologySpreadConstraints"] = [self._spread(app) for _ in range(self.rng.choice((1, 2, 2)))]
        spec |= {"volumes": []} if "volumes" in self.has and self.chance(60) else {}
        spec |= {"resourceClaims": []} if "devices" in self.has and self.chance(60) else {}
        return spec

    def _selector(self, app: str) -> JSONDict:
        kind = self.rng.randrange(7)
        if kind < 3:
            return {"matchLabels": {"app": app}}
        if kind < 5:
            return {"matchLabels": {"app": self.rng.choice(self.apps)}}
        return {"matchExpressions": [in_("app", *self.some(*self.apps))]} if kind == 5 else {}

    def _spread(self, app: str) -> JSONDict:
        found: JSONDict = {
            "maxSkew": self.rng.choice((1, 1, 2, 3)),
            "topologyKey": self.rng.choice((ZONE, ZONE, HOSTNAME, CAPACITY_TYPE, RACK)),
            "whenUnsatisfiable": "ScheduleAnyway" if self.chance(25) else "DoNotSchedule",
            "labelSelector": self._selector(app),
        }
        if found["whenUnsatisfiable"] == "DoNotSchedule" and self.chance(30):
            found["minDomains"] = self.rng.choice((2, 3, 4))
        for key in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if self.chance(45):
                found[key] = self.rng.choice(("Honor", "Ignore"))
        return {**found, "matchLabelKeys": ["rev"]} if self.chance(20) else found

    def _affinity(self, app: str) -> JSONDict:
        found: JSONDict = {}
        if "selectors" in self.has and self.chance(40):
            terms = [
                {"matchExpressions": [self._expression() for _ in range(self.rng.choice((1, 1, 2)))]}
                for _ in range(self.rng.choice((1, 2, 2, 3)))
            ]
            found["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": terms}}
        if "preferences" in self.has and self.chance(60):
            weighted = [
                {"weight": self.rng.choice((1, 10, 50)), "preference": {"matchExpressions": [self._expression()]}}
                for _ in range(self.rng.choice((1, 2)))
            ]
            found.setdefault("nodeAffinity", {})[PREFERRED] = weighted
        for feature, kind in (("affinity", "podAffinity"), ("apart", "podAntiAffinity")):
            if feature in self.has and self.chance(60):
                terms = [self._term(app) for _ in range(self.rng.choice((1, 1, 2)))]
                preferred = "preferences" in self.has and self.chance(50)
                weighted = [{"weight": self.rng.choice((3, 7)), "podAffinityTerm": term} for term in terms]
                found[kind] = {PREFERRED: weighted} if preferred else {REQUIRED: terms}
        return found

    def _term(self, app: str) -> JSONDict:
        key = self.rng.choice((HOSTNAME, ZONE, ZONE, CAPACITY_TYPE, RACK))
        found = {"topologyKey": key, "labelSelector": self._selector(app)}
        extra = {"namespaceSelector": {}} if self.chance(10) else {"matchLabelKeys": ["rev"]} if self.chance(10) else {}
        return {**found, **extra}

    def _expression(self) -> JSONDict:
        values = {
            ZONE: ZONES,
            CAPACITY_TYPE: ("on-demand", "spot"),
            FAMILY: ("m", "c", "r"),
            CPU: ("2", "4", "8"),
            TEAM: ("red", "blue"),
        }
        key = self.rng.choice((ZONE, CAPACITY_TYPE, *sorted(values)))
        operator = self.rng.choice(("In", "In", "NotIn", "NotIn", "Exists", *(("Gt", "Lte") if key == CPU else ())))
        if operator == "Exists":
            return {"key": key, "operator": operator}
        count = 1 if operator in {"Gt", "Lte"} else 2
        return {"key": key, "operator": operator, "values": self.some(*values[key])[:count]}

    # --- nodes, volumes, devices

    def _node(self, number: int, pool: JSONDict, kind: JSONDict, workloads: dict[str, JSONDict]) -> Iterator[JSONDict]:
        """Yield a claim, mostly its node too, and the pods that run there."""
        offering = self.rng.choice([o for o in kind["offerings"] if "reservationCapacity" not in o])
        labels = {r["key"]: r["values"][0] for r in (*kind["requirements"], *offering["requirements"])}
        labels |= {NODEPOOL: pool["metadata"]["name"], "karpenter.test.sh/testnodeclass": "default"}
        wanted = {r["key"]: r for r in pool["spec"]["template"]["spec"]["requirements"]}
        labels |= {key: self.rng.choice(wanted[key]["values"]) for key in (TEAM, RACK) if key in wanted}
        template = pool["spec"]["template"]["spec"]
        taints = template.get("taints", [])
        registered = self.chance(40 if "waiting" in self.has else 85)
        launched = registered or self.chance(50)
        memory = "3500Mi" if self.chance(30) else kind["capacity"]["memory"]
        sizes = {"capacity": kind["capacity"], "allocatable": {**kind["capacity"], "memory": memory}}
        name, provider = f"n{number}", f"aws:///i-{number}"
        done = ("Launched", "Registered", "Initialized")[: 3 if registered else 1]
        conditions = [
            {"type": c, "status": "True", "reason": c, "lastTransitionTime": "2026-01-05T11:00:00Z"} for c in done
        ]
        open_to = [
            in_(INSTANCE_TYPE, kind["name"]),
            in_(ZONE, *self.some(*self.zones)),
            in_(NODEPOOL, labels[NODEPOOL]),
        ]
        known = {"providerID": provider, **sizes, "conditions": conditions, "nodeName": name if registered else ""}
        before = {key: value for key, value in labels.items() if key in {NODEPOOL, "karpenter.test.sh/testnodeclass"}}
        yield _object(
            *("NodeClaim", f"c{number}", "karpenter.sh/v1"),
            metadata={"labels": labels if launched else before, **({} if registered else self._planned_pods())},
            spec={"nodeClassRef": template["nodeClassRef"], "taints": taints, "requirements": open_to},
            status=known if launched else {},
        )
        if not registered:
            return
        marks = {HOSTNAME: name, "karpenter.sh/registered": "true"}
        marks |= {"karpenter.sh/initialized": "true"} if self.chance(85) else {}
        yield _object(
            *("Node", name),
            metadata={"labels": {**labels, **marks}},
            spec={"providerID": provider, "taints": taints, "unschedulable": self.chance(10)},
            status={**sizes, "conditions": [{"type": "Ready", "status": "True"}]},
        )
        if "volumes" in self.has:
            driver = {"name": DISK_DRIVER, "nodeID": name, "allocatable": {"count": self.rng.randint(1, 4)}}
            yield _object("CSINode", name, "storage.k8s.io/v1", spec={"drivers": [driver]})
        for spec in kind["resourceSlices"] if self.chance(70) else ():
            pool_of_node = {**spec["pool"], "name": name}
            slice_name = f"{name}-{'counters' if 'sharedCounters' in spec else 'devices'}"
            owner = {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}]}
            yield _object(
                "ResourceSlice",
                slice_name,
                "resource.k8s.io/v1",
                metadata=owner,
                spec={**spec, "pool": pool_of_node, "nodeName": name},
            )
        running = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        for n in range(self.rng.randint(0, 3)):
            app = self.rng.choice(self.apps)
            without = {"volumes"} if self.chance(30) else {"volumes", "resourceClaims"}
            spec = {k: v for k, v in workloads[app].items() if k not in without}
            small = [
                _container(self.rng.choice(("50m", "200m", "200m", "3")), self.rng.choice(("64Mi", "64Mi", "2Gi")))
            ]
            yield self._pod(
                f"{app}-on-{number}-{n}", app, {**spec, "containers": small, "nodeName": name}, status=running
            )

    def _planned_pods(self) -> JSONDict:
        """Return the annotation of a NodeClaim that was made for some pods; not all of them exist any more."""
        pods = {f"default/{self.rng.choice(self.apps)}-{self.rng.randrange(4)}" for _ in range(self.rng.randint(1, 4))}
        return {"annotations": {PLANNED_PODS: ",".join(sorted(pods))}}

    def _storage(self, objects: list[JSONDict]) -> Iterator[JSONDict]:
        """Yield PersistentVolumeClaims for the pods, some bound, and what they refer to."""
        for name, zones in (("anywhere", ()), ("some-zones", ("a", "b"))):
            topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}] if zones else []
            body = {
                "provisioner": DISK_DRIVER,
                "volumeBindingMode": "WaitForFirstConsumer",
                "allowedTopologies": topologies,
            }
            yield _object("StorageClass", name, "storage.k8s.io/v1", **body)
        for name in _uses(
            objects, lambda pod: [v["persistentVolumeClaim"]["claimName"] for v in pod.get("volumes", ())]
        ):
            if self.chance(3):
                continue
            spec: JSONDict = {"storageClassName": self.rng.choice(("anywhere", "some-zones"))}
            if self.chance(40):
                terms = [{"matchExpressions": [in_(ZONE, self.rng.choice(ZONES))]}]
                reach = {"required": {"nodeSelectorTerms": terms}}
                yield _object(
                    "PersistentVolume", f"pv-{name}", spec={"csi": {"driver": DISK_DRIVER}, "nodeAffinity": reach}
                )
                bound = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
                bound_spec = {**spec, "volumeName": f"pv-{name}"}
                yield _object("PersistentVolumeClaim", name, namespace="default", metadata=bound, spec=bound_spec)
            else:
                yield _object("PersistentVolumeClaim", name, namespace="default", spec=spec)

    def _claims(self, objects: list[JSONDict]) -> Iterator[JSONDict]:
        """Yield ResourceClaims for the pods, and their DeviceClass."""
        selectors = [{"cel": {"expression": f'device.driver == "{GPU_DRIVER}"'}}]
        yield _object("DeviceClass", "gpu", "resource.k8s.io/v1", spec={"selectors": selectors})
        names = _uses(objects, lambda pod: [c["resourceClaimName"] for c in pod.get("resourceClaims", ())])
        specs: dict[str, JSONDict] = {}
        for name in names:
            spec = specs.setdefault(name.split("-")[0], self._claim_spec())
            yield _object("ResourceClaim", name, "resource.k8s.io/v1", namespace="default", spec=spec)

    def _claim_spec(self) -> JSONDict:
        def device(**more: Any) -> JSONDict:
            return {"deviceClassName": "gpu", **more}

        model = f'device.attributes["{GPU_DRIVER}"].model == "{self.rng.choice("AB")}"'
        select = {"selectors": [{"cel": {"expression": model}}]}
        forms = (
            {"exactly": device(count=self.rng.randint(1, 3))},
            {"exactly": device(**select)},
            {"exactly": device(capacity={"requests": {"memory": self.rng.choice(("5Gi", "25Gi"))}})},
            {"exactly": device(allocationMode="All")},
            {"firstAvailable": [{"name": "x", **device(count=2, **select)}, {"name": "y", **device()}]},
        )
        requests = [{"name": f"r{n}", **self.rng.choice(forms)} for n in range(self.rng.choice((1, 1, 2)))]
        attribute = "matchAttribute" if self.chance(90) else "distinctAttribute"
        constraints = [{attribute: f"{GPU_DRIVER}/root"}] if self.chance(30) else []
        return {"devices": {"requests": requests, "constraints": constraints}}

    def _slices(self, count: int) -> list[JSONDict]:
        """Return the slices of one node: GPUs, some of them parts of one or shared, and the counters of the parts."""
        devices = []
        for n in range(min(count, 4)):
            attributes = {"model": {"string": self.rng.choice("AB")}, "root": {"string": self.rng.choice("xy")}}
            device: JSONDict = {"name": f"g{n}", "attributes": attributes, "capacity": {"memory": {"value": "40Gi"}}}
            if self.chance(30):
                used = {"memory": {"value": self.rng.choice(("10Gi", "20Gi"))}}
                device["consumesCounters"] = [{"counterSet": "all", "counters": used}]
            if self.chance(25):
                device["allowMultipleAllocations"] = True
            devices.append(device)
        whole = {"driver": GPU_DRIVER, "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 2}}
        counters = [{"name": "all", "counters": {"memory": {"value": "40Gi"}}}]
        return [{**whole, "devices": devices}, {**whole, "devices": [], "sharedCounters": counters}]


def _uses(objects: list[JSONDict], names: Any) -> list[str]:
    """Return the claims that pods use, each once."""
    return list(dict.fromkeys(name for o in objects if o["kind"] == "Pod" for name in names(o["spec"])))


def _container(cpu: str, memory: str) -> JSONDict:
    return {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": memory}}}


def _object(kind: str, name: str, api: str = "v1", *, namespace: str = "", **rest: Any) -> JSONDict:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **rest.pop("metadata", {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}
