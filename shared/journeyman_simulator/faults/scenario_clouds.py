"""What the generator, the operations and the checkers know of each cloud, as data. `CLOUDS` has them by name.

`aws_cloud`, `alibaba_cloud` and `huawei_cloud` simulate the accounts with the deployed functions (`simulated_cloud.SimulatedCloud`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Literal

from msgspec import Struct

from journeyman.core.api.objects import CCENODECLASS, EC2NODECLASS, ECSNODECLASS, Resource
from journeyman_simulator.alibaba_account.ecs_types import SMALL_SELECTION as SMALL_ECS_SELECTION
from journeyman_simulator.faults import fault_scenario
from journeyman_simulator.faults.fault_scenario import CloudName, Operation
from journeyman_simulator.huawei_account.flavor_data import SMALL_SELECTION as SMALL_FLAVOR_SELECTION
from journeyman_simulator.in_process_account.ec2_catalogue import SMALL_SELECTION as SMALL_EC2_SELECTION

CLUSTER: Final = "demo"
DISCOVERY: Final = "karpenter.sh/discovery"
ConditionStatus = Literal["True", "False", "Unknown"]
NodeCondition = tuple[str, ConditionStatus]
Spec = dict[str, Any]


class ScenarioCloud(Struct, frozen=True, kw_only=True):
    """One cloud."""

    name: CloudName
    node_class: Resource[dict[str, Any]]
    node_class_spec: Spec  # without the selector of networks
    network_selector: Callable[[str], Spec]  # part of the spec, by the networks' discovery tag or name
    types: tuple[str, ...]  # the instance types that scenarios offer by default
    generated_types: tuple[str, ...]  # those from which the generator draws, sorted
    large_types: tuple[str, ...]  # of these, types that fit every generated pod; each setup offers one of them
    conditions: tuple[str, ...]  # that an agent reports of unhealthy nodes for a while
    unhealthy_statuses: tuple[ConditionStatus, ...]  # of these conditions
    lasting_condition: NodeCondition  # until the repair, from an agent; Ready from a stopped kubelet
    tolerated: Mapping[NodeCondition, timedelta]  # Karpenter's repair policies for the cloud
    queues: tuple[str, ...]  # the queues that have message faults: a step's value, or "requeue"
    changing_reads: frozenset[str]  # reads of the account whose responses change within a scenario
    missing: frozenset[type[Operation]] = frozenset()  # operations without effect on this cloud
    launch: str  # the call that launches an instance
    describe: str  # the call that lists instances
    stops_chains: bool = False  # whether the platform stops functions that start each other by messages
    needs_sweep: bool = False  # whether steps leave late work to the sweep, instead of sending a message
    has_client_token: bool = True  # whether the cloud launches one instance for equal requests
    shows_ended: bool = False  # whether the list of instances has those that have ended
    max_receives: int = 50  # after so many failed runs a message is a dead letter


def _subnets(discovery: str) -> Spec:
    return {"subnetSelectorTerms": [{"tags": {DISCOVERY: discovery}}]}


def _vswitches(discovery: str) -> Spec:
    return {"vSwitchSelectorTerms": [{"tags": {DISCOVERY: discovery}}]}


def _subnet_by_name(name: str) -> Spec:
    return {"subnetSelectorTerms": [{"name": name}]}


_HALF_AN_HOUR: Final = timedelta(minutes=30)

_TOO_FEW_PODS: Final = frozenset({"ecs.g6.large", "ecs.u1-c1m2.large"})
"""Types with Terway addresses for 9 pods only; the product launches none for fewer than 11, as the published provider."""

AWS: Final = ScenarioCloud(
    name="aws",
    node_class=EC2NODECLASS,
    node_class_spec={
        "role": f"KarpenterNodeRole-{CLUSTER}",
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "securityGroupSelectorTerms": [{"tags": {DISCOVERY: CLUSTER}}],
    },
    network_selector=_subnets,
    types=SMALL_EC2_SELECTION,
    generated_types=tuple(sorted({*SMALL_EC2_SELECTION, "c6i.large", "m5.2xlarge", "m6g.xlarge", "t3.medium"})),
    large_types=("m5.large", "m6g.large", "r5.large"),
    conditions=("NetworkingReady", "KernelReady", "StorageReady", "AcceleratedHardwareReady"),
    unhealthy_statuses=("False", "Unknown"),
    lasting_condition=("AcceleratedHardwareReady", "False"),
    tolerated={
        ("AcceleratedHardwareReady", "False"): timedelta(minutes=10),
        **{
            (name, "False"): _HALF_AN_HOUR
            for name in ("Ready", "StorageReady", "NetworkingReady", "KernelReady", "ContainerRuntimeReady")
        },
        ("Ready", "Unknown"): _HALF_AN_HOUR,
    },
    queues=("provision", "terminate", "consolidate", "interrupt", "requeue"),
    changing_reads=frozenset({"ec2 DescribeInstances", "ec2 DescribeLaunchTemplates", "iam GetInstanceProfile"}),
    launch="ec2 CreateFleet",
    describe="ec2 DescribeInstances",
    stops_chains=True,
    shows_ended=True,
)

ALIBABA: Final = ScenarioCloud(
    name="alibaba",
    node_class=ECSNODECLASS,
    node_class_spec={
        "imageSelectorTerms": [{"alias": "AlibabaCloudLinux3@latest"}],
        "securityGroupSelectorTerms": [{"tags": {DISCOVERY: CLUSTER}}],
    },
    network_selector=_vswitches,
    types=SMALL_ECS_SELECTION,
    generated_types=tuple(sorted(set(SMALL_ECS_SELECTION) - _TOO_FEW_PODS)),
    large_types=("ecs.g7.large", "ecs.g8y.large", "ecs.r7.large"),
    conditions=("KernelDeadlock", "ReadonlyFilesystem", "RuntimeOffline", "NTPProblem"),
    unhealthy_statuses=("True", "Unknown"),
    lasting_condition=("KernelDeadlock", "True"),
    tolerated={
        ("Ready", "False"): _HALF_AN_HOUR,
        ("Ready", "Unknown"): _HALF_AN_HOUR,
        **{(name, "True"): _HALF_AN_HOUR for name in ("KernelDeadlock", "ReadonlyFilesystem", "RuntimeOffline")},
    },
    queues=("provision", "terminate", "consolidate", "interrupt", "sweep"),
    changing_reads=frozenset({"ecs DescribeInstances"}),
    missing=frozenset({fault_scenario.Rebalance, fault_scenario.FailCheck}),
    launch="ecs CreateAutoProvisioningGroup",
    describe="ecs DescribeInstances",
)

HUAWEI: Final = ScenarioCloud(
    name="huawei",
    node_class=CCENODECLASS,
    node_class_spec={
        "imsSelector": {"imsFamily": "Huawei Cloud EulerOS 2.0"},
        "blockDeviceMappings": {
            "root": {"volumeSize": 40, "volumeType": "SSD"},
            "k8s": {"volumeSize": 100, "volumeType": "SSD"},
        },
        "login": {"sshKey": f"KeyPair-{CLUSTER}"},
    },
    network_selector=_subnet_by_name,
    types=SMALL_FLAVOR_SELECTION,
    generated_types=tuple(sorted({*SMALL_FLAVOR_SELECTION, "c7n.large.4", "kc1.large.4", "m7.large.8", "s7.xlarge.4"})),
    large_types=("c9.large.4", "kc1.large.4", "m7.large.8"),
    conditions=("CNIProblem", "DiskReadonly", "NTPProblem", "PIDProblem"),
    unhealthy_statuses=("True", "Unknown"),
    lasting_condition=("Ready", "Unknown"),
    tolerated={("Ready", "False"): _HALF_AN_HOUR, ("Ready", "Unknown"): _HALF_AN_HOUR},
    queues=("provision", "terminate", "consolidate", "interrupt", "sweep", "delay"),
    changing_reads=frozenset({"cce ListNodes", "ecs ListServersDetails"}),
    missing=frozenset(
        {
            fault_scenario.Rebalance,
            fault_scenario.FailCheck,
            fault_scenario.RebuildCluster,  # nodes are listed by the id of the CCE cluster, which the entry has
            fault_scenario.ReturnCluster,
        }
    ),
    launch="cce CreateNode",
    describe="cce ListNodes",
    needs_sweep=True,
    has_client_token=False,
    max_receives=4,  # FunctionGraph repeats a failed invocation three times
)

CLOUDS: Final[Mapping[str, ScenarioCloud]] = {facts.name: facts for facts in (AWS, ALIBABA, HUAWEI)}
