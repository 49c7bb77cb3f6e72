"""A deployment on a simulated cloud whose account or NodeClass has a mistake, with three pods that wait for nodes.

The official SDK calls the simulated account over HTTP. A test corrects its mistake at its end; then the pods run.
"""

from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import yaml
from msgspec import Struct

from journeyman.core.api.objects import CCENODECLASS, ECSNODECLASS, NODECLAIM, NODEPOOL, POD
from journeyman_simulator.alibaba_account.local_alibaba import LocalAlibabaDeployment
from journeyman_simulator.deployment_files import deployment_file
from journeyman_simulator.huawei_account.local_huawei import LocalHuaweiDeployment
from journeyman_simulator.workload_controllers import DEPLOYMENT

START = datetime(2026, 3, 3, 20, tzinfo=timezone.utc)


class BadInputCloud(Struct, frozen=True, kw_only=True):
    """What differs between the clouds: the deployment, its examples of docs/, and the names of their objects."""

    deployment: type
    examples: tuple[str, ...]
    workload: str  # the Deployment, and its pods' label `app`
    node_class: object  # the resource
    node_class_name: str
    subnets: str  # the account's attribute with its subnets by id, in its network
    wrong_region: dict[str, str]  # settings

    def function_caller(self, name):
        """Return the keyword by which the account denies a function an action."""
        return {"caller": f"journeyman-{name}"} if self is HUAWEI else {}


ALIBABA = BadInputCloud(
    deployment=LocalAlibabaDeployment,
    examples=("alibaba-cluster", "inflate"),
    workload="inflate",
    node_class=ECSNODECLASS,
    node_class_name="default",
    subnets="vswitches",
    wrong_region={"JOURNEYMAN_REGION": "cn-nowhere"},
)
HUAWEI = BadInputCloud(
    deployment=LocalHuaweiDeployment,
    examples=("huawei-cluster",),
    workload="cpu-burst",
    node_class=CCENODECLASS,
    node_class_name="demo-cce-elastic-cpu",
    subnets="subnets",
    wrong_region={"region": "cn-nowhere-1"},
)


class BadInputCluster:
    """A deployment with pods that wait for nodes, and what it reports."""

    def __init__(self, cloud, deployment, logs):
        self.cloud, self.deployment, self.logs = cloud, deployment, logs
        self.account, self.server, self.world = deployment.account, deployment.server, deployment.world
        self.launch = deployment.facts.launch_operation
        self.events = []
        self.server.on_write(lambda write: self.events.append(write) if write.resource.kind == "Event" else None)
        for name in cloud.examples:
            self.server.load(yaml.safe_load_all(deployment_file("docs", "examples", f"{name}.yaml").read_text()))

    def scale(self, replicas):
        self.server.patch(DEPLOYMENT, self.cloud.workload, {"spec": {"replicas": replicas}}, namespace="default")

    def run(self, minutes):
        self.world.run_for(timedelta(minutes=minutes))

    def running(self, app=""):
        """Return the number of running pods with a label `app`; by default that of the example's workload."""
        pods = [p for p in self.server.list(POD).items if p.metadata.labels.get("app") == (app or self.cloud.workload)]
        return sum(pod.status.phase == "Running" for pod in pods)

    def until_running(self, number, minutes=20, app=""):
        within = timedelta(minutes=minutes)
        self.world.run_until(lambda: self.running(app) == number, within=within, waiting_for=f"{number} running pods")

    def edit_node_class(self, **spec):
        self.server.patch(self.cloud.node_class, self.cloud.node_class_name, {"spec": spec})

    def said_by_node_class(self):
        """Return the messages of the NodeClass's conditions that are False."""
        status = self.server.get(self.cloud.node_class, self.cloud.node_class_name).get("status") or {}
        return [f"{c['reason']}: {c['message']}" for c in status.get("conditions", ()) if c["status"] == "False"]

    def said_by_claims(self):
        """Return reason and message of the Launched condition of each NodeClaim that is not launched."""
        found = (c for claim in self.claims() for c in claim.status.conditions)
        return [f"{c.reason}: {c.message}" for c in found if c.type == "Launched" and c.status != "True"]

    def said_by_pools(self):
        """Return reason and message of NodeRegistrationHealthy of each NodePool whose nodes do not start."""
        found = (c for pool in self.server.list(NODEPOOL).items for c in pool["status"].get("conditions", ()))
        unhealthy = (c for c in found if c["type"] == "NodeRegistrationHealthy" and c["status"] == "False")
        return [f"{c['reason']}: {c['message']}" for c in unhealthy]

    def said_of_launches(self):
        """Return the messages of the Events of failed launches, by the kind of their object."""
        said = {}
        for write in self.events:
            if write.body.get("reason") == "LaunchFailed":
                said.setdefault(write.body["involvedObject"]["kind"], []).append(write.body["message"])
        return said

    def said_by_events(self):
        """Return the messages of all Kubernetes Events."""
        return [write.body.get("message", "") for write in self.events]

    def logged(self):
        """Return the messages of warnings and errors, with their remedies."""
        levels = {"WARNING", "ERROR"}
        return [f"{line['message']} {line.get('to_do', '')}" for line in self.logs if line["level"] in levels]

    def claims(self):
        return self.server.list(NODECLAIM).items

    def subnets(self):
        """Return the ids of the account's subnets."""
        return sorted(getattr(self.account.network, self.cloud.subnets))

    def take_addresses(self, free=0):
        """Leave so many free addresses in every subnet."""
        for id_ in self.subnets():
            self.account.set_free_addresses(id_, free)

    def pools(self):
        """Yield instance type, zone and capacity type of everything that the account sells."""
        for name in self.account.catalogue.flavors if self.cloud is HUAWEI else self.account.catalogue.types:
            for zone in self.account.zones:
                yield from ((name, zone, kind) for kind in ("spot", "on-demand"))


@contextmanager
def bad_input_cluster(cloud, **options):
    """Yield a cluster whose pods wait; afterwards they run, the cluster is emptied, and nothing may be left."""
    logs = []
    with cloud.deployment(start=START, on_log=logs.append, **options) as deployment:
        opened = BadInputCluster(cloud, deployment, logs)
        opened.scale(3)
        yield opened
        opened.until_running(3)
        opened.scale(0)
        opened.world.run_until(
            lambda: not deployment.leftovers(), within=timedelta(minutes=90), waiting_for="an empty cluster"
        )
        assert deployment.leftovers() == ()
