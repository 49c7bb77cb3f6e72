"""Implements CCE nodes and their jobs: CreateNode, ListNodes, ShowNode, DeleteNode and ShowJob.

A node is in Build until its server runs, then in Installing until CCE has prepared it, then Active. Its job has one sub-job,
CreateNode, whose sub-jobs create the server and install the node. An answer has the sub-jobs of one level; those below are read
by their ids. What a request sets as labels, tags and taints is in no answer.

Differs: CCE does not say whether ListNodes may lag behind; here it can, like ECS's lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.huawei_account.cce_clusters import ENI, CceClusters, SimulatedCceCluster, timestamp
from journeyman_simulator.huawei_account.ecs_flavors import ON_DEMAND, SPOT, FlavorCatalogue
from journeyman_simulator.huawei_account.ecs_servers import (
    ACTIVE,
    BUILD,
    DELETED,
    HuaweiInstance,
    HuaweiTiming,
    SimulatedServers,
)
from journeyman_simulator.huawei_account.flavor_data import FlavorFacts
from journeyman_simulator.huawei_account.huawei_vpc import HuaweiVpc
from journeyman_simulator.huawei_account.node_requests import check_node, check_reservations, check_system
from journeyman_simulator.huawei_account.rest_errors import LOCKED, invalid_node, no_stock, resource_not_found
from journeyman_simulator.huawei_account.rest_operations import OperationHandlers, RestRequest

JSON = Mapping[str, Any]
_WRITE_ONLY: Final = frozenset({"k8sTags", "userTags", "taints"})
_DEFAULT_LIMIT: Final = 2000
_SERVER_JOB, _INSTALL_JOB = "CreateNodeVM", "InstallNode"
_ENDED: Final = frozenset({"Failed", "Success"})
_SHOWN: Final = timedelta(minutes=10)
"""How long lists that lag behind can show a node that was removed."""


class CceJob(Struct, kw_only=True, eq=False):
    """A job, or a part of one."""

    id: str
    type: str
    cluster_id: str
    node_id: str
    name: str
    created_at: datetime
    updated_at: datetime
    parts: list[CceJob] = field(default_factory=list)
    phase: str = "Running"
    reason: str = ""
    server_id: str = ""


class CceNode(Struct, kw_only=True, eq=False):
    """A node of a cluster."""

    id: str
    name: str
    cluster_id: str
    spec: dict[str, Any]
    instance: HuaweiInstance
    created_at: datetime
    job: CceJob
    installed_at: datetime | None = None
    failed_at: datetime | None = None
    forgotten_at: datetime | None = None  # when its deletion ended

    def phase_at(self, moment: datetime) -> str:
        """Return the node's phase at a moment."""
        instance = self.instance
        state = instance.state_at(moment)
        if _is_past(instance.deleting_since, moment):
            return "Deleting"
        if _is_past(self.failed_at, moment):
            return "Error"
        if state == BUILD:
            return "Build"
        if state != ACTIVE:
            return "Abnormal"
        return "Active" if _is_past(self.installed_at, moment) else "Installing"

    def exists_at(self, moment: datetime) -> bool:
        """Whether CCE knows the node at a moment."""
        return self.created_at <= moment and not _is_past(self.forgotten_at, moment)


def _is_past(time: datetime | None, moment: datetime) -> bool:
    return time is not None and time <= moment


class NodeQuotas(Struct, kw_only=True):
    """What the account may still create; None is unlimited."""

    servers: int | None = None
    vcpus: int | None = None
    memory_mib: int | None = None
    disks: int | None = None


class CceNodes:
    """The nodes of all clusters.

    Attributes:
        key_pairs: The key pairs that a node can name.
        agencies: The agencies that a node's server can have.
        images: The ids of private images.
        server_groups: The ids of ECS server groups.
        quotas: The account's quotas.
    """

    def __init__(
        self,
        *,
        time: ServiceTime,
        timing: HuaweiTiming,
        clusters: CceClusters,
        servers: SimulatedServers,
        catalogue: FlavorCatalogue,
        network: HuaweiVpc,
        require_solvent: Callable[[], None],
    ) -> None:
        self._time = time
        self._timing = timing
        self._clusters = clusters
        self._servers = servers
        self._catalogue = catalogue
        self._network = network
        self._require_solvent = require_solvent
        self._serial = count(1)
        self.nodes: dict[str, CceNode] = {}
        self._recently_forgotten: list[CceNode] = []
        self.jobs: dict[str, CceJob] = {}
        self.key_pairs: set[str] = set()
        self.agencies: set[str] = set()
        self.images: set[str] = set()
        self.server_groups: set[str] = set()
        self.quotas = NodeQuotas()
        servers.on_gone.append(lambda instance: self._remove(instance.node_id))

    def handlers(self) -> OperationHandlers:
        """Return the handlers of CCE's operations on nodes and jobs."""
        return {
            "CreateNode": self._create,
            "ListNodes": self._list,
            "ShowNode": lambda request: self._entry(self._require(request)),
            "DeleteNode": self._delete,
            "ShowJob": self._show_job,
        }

    # -- CreateNode ----------------------------------------------------------------------------------------------

    def _create(self, request: RestRequest) -> dict[str, Any]:
        cluster = self._clusters.require(request.path["cluster_id"])
        spec = check_node(request.body)
        flavor = self._checked_flavor(spec, cluster)
        self._check_resources(spec)
        subnet_id = spec.get("nodeNicSpec", {}).get("primaryNic", {}).get("subnetId", cluster.subnet_id)
        self._network.require_free_address(subnet_id, cluster.vpc_id)
        self._require_solvent()
        self._check_quotas(cluster, flavor, spec)
        capacity_type = self._checked_capacity_type(spec, flavor)
        if not self._catalogue.has_stock(flavor.name, spec["az"], capacity_type):
            raise no_stock(flavor.name, spec["az"])
        name = request.body.get("metadata", {}).get("name") or f"{cluster.name[:36]}-{next(self._serial):05d}"
        instance = self._servers.launch(
            name=name,
            cluster_id=cluster.id,
            subnet_id=subnet_id,
            spec=spec,
            capacity_type=capacity_type,
            tags={tag["key"]: tag["value"] for tag in spec.get("userTags", [])},
        )
        node = CceNode(
            id=instance.node_id,
            name=name,
            cluster_id=cluster.id,
            spec=_readable(spec),
            instance=instance,
            created_at=self._time.now(),
            job=self._creation_job(instance),
        )
        self.nodes[node.id] = node
        self._servers.after(self._timing.server_seconds, lambda: self._create_server(node))
        entry = self._entry(node)
        entry["status"] = {"jobID": node.job.id}
        return entry

    def _checked_flavor(self, spec: JSON, cluster: SimulatedCceCluster) -> FlavorFacts:
        flavor = self._catalogue.flavors.get(spec["flavor"])
        if flavor is None:
            raise invalid_node(f"spec.flavor {spec['flavor']} does not exist")
        if spec["az"] not in self._catalogue.zones:
            raise invalid_node(f"spec.az {spec['az']} does not exist")
        check_system(spec, flavor)
        check_reservations(spec, flavor)
        if cluster.network_mode == ENI and not flavor.sub_interfaces:
            raise ServiceError("CCE.01400025", f"flavor {flavor.name} does not support the Eni network")
        return flavor

    def _check_resources(self, spec: JSON) -> None:
        """Raise ServiceError if the account lacks what a node names: a key pair, an agency, an image or a server group."""
        extend = spec.get("extendParam", {})
        for what, name, known in (
            ("the key pair", spec["login"].get("sshKey"), self.key_pairs),
            ("the agency", extend.get("agency_name"), self.agencies),
            ("the image", extend.get("alpha.cce/NodeImageID"), self.images),
            ("the server group", spec.get("ecsGroupId"), self.server_groups),
        ):
            if name is not None and name not in known:
                raise invalid_node(f"{what} {name!r} does not exist")

    def _checked_capacity_type(self, spec: JSON, flavor: FlavorFacts) -> str:
        extend = spec.get("extendParam", {})
        if "marketType" not in extend:
            return ON_DEMAND
        market = self._catalogue.prices.spot(flavor.name, spec["az"])
        limit = float(extend.get("spotPrice", flavor.price))
        if market is not None and not market <= limit <= flavor.price:
            raise invalid_node(
                f"spec.extendParam.spotPrice {limit} must be at least the market price {market} "
                f"and at most the on-demand price {flavor.price}"
            )
        return SPOT

    def _check_quotas(self, cluster: SimulatedCceCluster, flavor: FlavorFacts, spec: JSON) -> None:
        alive = self._servers.alive()
        flavors = [self._catalogue.flavors[instance.instance_type] for instance in alive]
        disks = sum(1 + len(each["dataVolumes"]) for each in (spec, *(instance.spec for instance in alive)))
        quotas = self.quotas
        for quota, used, code in (
            (quotas.servers, len(alive) + 1, "CCE.01400008"),
            (quotas.vcpus, sum(each.vcpus for each in flavors) + flavor.vcpus, "CCE.01400009"),
            (quotas.memory_mib, sum(each.ram_mib for each in flavors) + flavor.ram_mib, "CCE.01400010"),
            (quotas.disks, disks, "CCE.01400013"),
            (
                cluster.most_nodes,
                sum(node.cluster_id == cluster.id for node in self.nodes.values()) + 1,
                "CCE.01400014",
            ),
        ):
            if quota is not None and used > quota:
                raise ServiceError(code, f"the quota is {quota}; {used} would be used")

    # -- progress ------------------------------------------------------------------------------------------------

    def _create_server(self, node: CceNode) -> None:
        """Create a node's server, unless the node is being deleted or the zone has no stock."""
        instance = node.instance
        if instance.is_deleting or instance.state != BUILD:
            return
        cause = instance.build_failure
        if self._catalogue.fails_in_job(instance.instance_type, instance.zone, instance.capacity_type):
            cause = "Ecs.0319: Insufficient flavor capacity, insufficient capacity in the specified az."
        if cause:
            node.failed_at = self._time.now()
            reason = f"Create node {node.name} failed: [{instance.instance_type}|{instance.zone}] {cause}"
            self._end_job(node.job, "Failed", reason)
            self._servers.fail(instance)
            return
        self._servers.create(instance)
        server_job, install_job = node.job.parts[0].parts
        server_job.phase, install_job.phase = "Success", "Running"
        server_job.server_id = instance.id
        if instance.joins:
            self._servers.after(self._timing.install_seconds, lambda: self._install(node))

    def _install(self, node: CceNode) -> None:
        if not node.instance.is_deleting and node.instance.state != DELETED:
            node.installed_at = self._time.now()
            self._end_job(node.job, "Success")

    def _creation_job(self, instance: HuaweiInstance) -> CceJob:
        parts = [self._job(kind, instance) for kind in (_SERVER_JOB, _INSTALL_JOB)]
        parts[1].phase = "Initializing"
        return self._job("ScaleupCluster", instance, [self._job("CreateNode", instance, parts)])

    def _job(self, kind: str, instance: HuaweiInstance, parts: list[CceJob] | None = None) -> CceJob:
        now = self._time.now()
        job = CceJob(
            id=f"{next(self._serial):08x}-0a0b-4000-8000-000000000000",
            type=kind,
            cluster_id=instance.cluster_id,
            node_id=instance.node_id,
            name=instance.name,
            created_at=now,
            updated_at=now,
            parts=parts or [],
        )
        self.jobs[job.id] = job
        return job

    def _end_job(self, job: CceJob, phase: str, reason: str = "") -> None:
        """End a job and its parts that still run."""
        for each in (job, *job.parts, *(part for section in job.parts for part in section.parts)):
            if each.phase not in _ENDED and (phase == "Success" or each.type != _INSTALL_JOB):
                each.phase, each.reason, each.updated_at = phase, reason, self._time.now()

    # -- DeleteNode ----------------------------------------------------------------------------------------------

    def _delete(self, request: RestRequest) -> dict[str, Any]:
        node = self._require(request)
        instance = node.instance
        if instance.is_reclaimed:
            raise ServiceError(LOCKED, f"node {node.id} cannot be deleted while ECS reclaims its Spot server")
        entry = self._entry(node)  # which has the phase before the deletion
        if not instance.is_deleting:
            self._end_job(node.job, "Failed", f"node {node.id} was deleted")
            node.job = self._job("DeleteNode", instance)
            if instance.state == DELETED:  # without a server, only CCE's record is left
                instance.deleting_since = self._time.now()
                self._servers.note_deletion(instance)
            self._servers.begin_deletion(instance)
            self._servers.after(self._timing.deletion_seconds, lambda: self._forget(node))
        entry["status"]["jobID"] = node.job.id
        return entry

    def _forget(self, node: CceNode) -> None:
        self._end_job(node.job, "Success")
        self._remove(node.id)

    def _remove(self, node_id: str) -> None:
        """Remove a node, which lists that lag behind show for a while."""
        now = self._time.now()
        self._recently_forgotten = [n for n in self._recently_forgotten if not _is_past(n.forgotten_at, now - _SHOWN)]
        if node := self.nodes.pop(node_id, None):
            node.forgotten_at = now
            self._recently_forgotten.append(node)

    # -- reads ---------------------------------------------------------------------------------------------------

    def _require(self, request: RestRequest) -> CceNode:
        cluster = self._clusters.require(request.path["cluster_id"])
        node = self.nodes.get(request.path["node_id"])
        if node is None or node.cluster_id != cluster.id:
            raise resource_not_found("Node", request.path["node_id"])
        return node

    def _list(self, request: RestRequest) -> dict[str, Any]:
        cluster = self._clusters.require(request.path["cluster_id"])
        known = (*self.nodes.values(), *self._recently_forgotten)
        mine = (node for node in known if node.cluster_id == cluster.id and node.exists_at(request.as_of))
        found = sorted(mine, key=lambda node: node.id)
        if marker := request.text("marker"):
            found = [node for node in found if node.id > marker]
        page = found[: request.query.get("limit", _DEFAULT_LIMIT)]
        info: dict[str, Any] = {"currentCount": len(page)}
        if len(page) < len(found):
            info["nextMarker"] = page[-1].id
        items = [self._entry(node, request.as_of) for node in page]
        return {"kind": "List", "apiVersion": "v3", "items": items, "pageInfo": info}

    def _entry(self, node: CceNode, as_of: datetime | None = None) -> dict[str, Any]:
        """Return a node as answers have it; by default as it is now."""
        instance, now = node.instance, self._time.now()
        moment = as_of or now
        status = {"phase": node.phase_at(moment), "jobID": node.job.id, "lastProbeTime": timestamp(now)}
        if instance.state_at(moment) != BUILD and node.failed_at is None:  # it is more than a plan
            status |= {"serverId": instance.id, "privateIP": instance.address}
        spec = node.spec
        return {
            "kind": "Node",
            "apiVersion": "v3",
            "metadata": {
                "name": node.name,
                "uid": node.id,
                "creationTimestamp": timestamp(node.created_at),
                "updateTimestamp": timestamp(instance.changes[-1].at),
                "annotations": {"kubernetes.io/node-pool.id": f"{spec['az']}#{spec['flavor']}#{spec['os']}"},
            },
            "spec": dict(spec),
            "status": status,
        }

    def _show_job(self, request: RestRequest) -> dict[str, Any]:
        job = self.jobs.get(request.path["job_id"])
        if job is None:
            raise resource_not_found("Job", request.path["job_id"])
        entry = _job_entry(job)
        entry["spec"]["subJobs"] = [_job_entry(part) for part in job.parts]
        return entry


def _readable(spec: JSON) -> dict[str, Any]:
    """Return what answers have of a spec: without the fields that can only be written, and without the password."""
    shown = {name: value for name, value in spec.items() if name not in _WRITE_ONLY}
    if "userPassword" in spec["login"]:
        shown["login"] = {"userPassword": {"username": "root", "password": "******"}}
    defaults = {"os": "Huawei Cloud EulerOS 2.0", "billingMode": 0, "runtime": {"name": "containerd"}}
    return {**defaults, **shown}


def _job_entry(job: CceJob) -> dict[str, Any]:
    return {
        "kind": "Job",
        "apiVersion": "v3",
        "metadata": {
            "uid": job.id,
            "creationTimestamp": timestamp(job.created_at),
            "updateTimestamp": timestamp(job.updated_at),
        },
        "spec": {
            "type": job.type,
            "clusterUID": job.cluster_id,
            # the jobs above are about the cluster
            "resourceID": job.cluster_id if job.parts else job.node_id,
            "resourceName": job.name,
            "extendParam": {"serverID": job.server_id},
        },
        "status": {"phase": job.phase, "reason": job.reason},
    }
