"""No field of an EC2NodeClass is accepted and ignored: a change of each changes the status, the offers or the requests to AWS."""

from typing import Any

import pytest
from msgspec.structs import replace

from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.provider import AwsCloudProvider
from journeyman.core.api import labels
from journeyman.core.api.ec2nodeclass import EC2NodeClassSpec
from journeyman.core.state import NodeClassState
from journeyman.ports import LaunchRequest
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.in_process_account.account import REGION, InProcessAccount
from journeyman_simulator.in_process_account.ec2_catalogue import KNOWN_TYPES
from tests.helpers.field_paths import field_paths
from tests.unit.cloud.aws.conftest import DISCOVERED, PRIMARY, START, launching_claim

SMALL_DISK = {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "20Gi"}}


def a_disk(**ebs: Any) -> dict[str, Any]:
    return {"blockDeviceMappings": [{**SMALL_DISK, "ebs": {**SMALL_DISK["ebs"], **ebs}}]}


def images(**term: Any) -> dict[str, Any]:
    return {"amiFamily": "AL2023", "amiSelectorTerms": [term]}


def reservations(**more: str) -> dict[str, Any]:
    return {"capacityReservationSelectorTerms": [{"tags": {"team": "ml"}, **more}]}


def interfaces(*others: dict[str, Any]) -> dict[str, Any]:
    return {"networkInterfaces": [PRIMARY, *({**PRIMARY, **other} for other in others)]}


def tracking(**timeouts: int) -> dict[str, Any]:
    return {"connectionTracking": {"udpTimeout": 30, **timeouts}}


def with_large_disk(**more: Any) -> dict[str, Any]:
    return {"blockDeviceMappings": [{"deviceName": "/dev/xvdb", "ebs": {"volumeSize": "90Gi"}, **more}, SMALL_DISK]}


DISK, SNAPSHOT = a_disk(), a_disk(snapshotID="snap-1")
AL2023 = "amazon-eks-node-al2023-x86_64-standard-*"
BY_NAME, TRACKING, TEAM = images(name=AL2023), tracking(), reservations()
BOTTLEROCKET = "/aws/service/bottlerocket/aws-k8s-1.34/x86_64/latest/image_id"
NONE_FOUND = [{"tags": {"no": "such"}}]

# the field's path: the spec without, and with the change
EFFECTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "subnetSelectorTerms.tags": ({}, {"subnetSelectorTerms": NONE_FOUND}),
    "subnetSelectorTerms.id": ({}, {"subnetSelectorTerms": [{"id": "subnet-00000000000000001"}]}),
    "securityGroupSelectorTerms.tags": ({}, {"securityGroupSelectorTerms": NONE_FOUND}),
    "securityGroupSelectorTerms.id": ({}, {"securityGroupSelectorTerms": [{"id": "sg-00000000000000001"}]}),
    "securityGroupSelectorTerms.name": ({}, {"securityGroupSelectorTerms": [{"name": "default"}]}),
    "capacityReservationSelectorTerms.tags": ({}, TEAM),
    "capacityReservationSelectorTerms.id": ({}, {"capacityReservationSelectorTerms": [{"id": "cr-00000000000000001"}]}),
    "capacityReservationSelectorTerms.ownerID": (TEAM, reservations(ownerID="999999999999")),
    "capacityReservationSelectorTerms.instanceMatchCriteria": (TEAM, reservations(instanceMatchCriteria="open")),
    "placementGroupSelector.name": ({}, {"placementGroupSelector": {"name": "near"}}),
    "placementGroupSelector.id": ({}, {"placementGroupSelector": {"id": "pg-00000000000000001"}}),
    "associatePublicIPAddress": ({}, {"associatePublicIPAddress": True}),
    "ipPrefixCount": ({}, {"ipPrefixCount": 2}),
    "amiSelectorTerms.alias": ({}, {"amiSelectorTerms": [{"alias": "bottlerocket@latest"}]}),
    "amiSelectorTerms.tags": (BY_NAME, images(tags={"no": "such"})),
    "amiSelectorTerms.id": (BY_NAME, images(id="ami-00000000000000002")),
    "amiSelectorTerms.name": (BY_NAME, images(name="bottlerocket-*x86_64*")),
    "amiSelectorTerms.owner": (BY_NAME, images(name=AL2023, owner="123456789012")),
    "amiSelectorTerms.ssmParameter": (BY_NAME, images(ssmParameter=BOTTLEROCKET)),
    "amiFamily": ({}, {"amiFamily": "Custom"}),
    "userData": ({}, {"userData": "#!/bin/sh\necho hello"}),
    "role": ({}, {"role": "second"}),
    "instanceProfile": ({}, {"role": None, "instanceProfile": "mine"}),
    "tags": ({}, {"tags": {"team": "ml"}}),
    "kubelet": ({}, {"kubelet": {"maxPods": 7}}),
    "blockDeviceMappings.deviceName": (DISK, {"blockDeviceMappings": [{**SMALL_DISK, "deviceName": "/dev/xvdb"}]}),
    "blockDeviceMappings.rootVolume": (with_large_disk(), with_large_disk(rootVolume=True)),
    "blockDeviceMappings.ebs.deleteOnTermination": (DISK, a_disk(deleteOnTermination=False)),
    "blockDeviceMappings.ebs.encrypted": (DISK, a_disk(encrypted=True)),
    "blockDeviceMappings.ebs.iops": (DISK, a_disk(iops=4000)),
    "blockDeviceMappings.ebs.kmsKeyID": (DISK, a_disk(kmsKeyID="key")),
    "blockDeviceMappings.ebs.snapshotID": (DISK, SNAPSHOT),
    "blockDeviceMappings.ebs.throughput": (DISK, a_disk(throughput=200)),
    "blockDeviceMappings.ebs.volumeInitializationRate": (
        SNAPSHOT,
        a_disk(snapshotID="snap-1", volumeInitializationRate=200),
    ),
    "blockDeviceMappings.ebs.volumeSize": (DISK, a_disk(volumeSize="40Gi")),
    "blockDeviceMappings.ebs.volumeType": (DISK, a_disk(volumeType="gp2")),
    "instanceStorePolicy": ({}, {"instanceStorePolicy": "RAID0"}),
    "networkInterfaces.networkCardIndex": (interfaces(), interfaces({"networkCardIndex": 1, "deviceIndex": 1})),
    "networkInterfaces.deviceIndex": (interfaces(), interfaces({"deviceIndex": 1})),
    "networkInterfaces.interfaceType": (
        interfaces({"deviceIndex": 1}),
        interfaces({"deviceIndex": 1, "interfaceType": "efa-only"}),
    ),
    "detailedMonitoring": ({}, {"detailedMonitoring": True}),
    "metadataOptions.httpEndpoint": ({}, {"metadataOptions": {"httpEndpoint": "disabled"}}),
    "metadataOptions.httpProtocolIPv6": ({}, {"metadataOptions": {"httpProtocolIPv6": "enabled"}}),
    "metadataOptions.httpPutResponseHopLimit": ({}, {"metadataOptions": {"httpPutResponseHopLimit": 2}}),
    "metadataOptions.httpTokens": ({}, {"metadataOptions": {"httpTokens": "optional"}}),
    "connectionTracking.tcpEstablishedTimeout": (TRACKING, tracking(tcpEstablishedTimeout=90)),
    "connectionTracking.udpStreamTimeout": (TRACKING, tracking(udpStreamTimeout=90)),
    "connectionTracking.udpTimeout": (TRACKING, tracking(udpTimeout=40)),
    "context": ({}, {"context": "abc"}),
    "cpuOptions.nestedVirtualization": ({}, {"cpuOptions": {"nestedVirtualization": "disabled"}}),
}


def test_every_field_is_listed():
    """A new field needs an effect, and a line here."""
    assert set(EFFECTS) == set(field_paths(EC2NodeClassSpec))


class RecordingEc2:
    """EC2, whose requests that create something are recorded."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        if not name.startswith("create_"):
            return call

        def record(**parameters: Any) -> Any:
            self.requests.append((name, parameters))
            return call(**parameters)

        return record


def observed(spec: dict[str, Any], settings: AwsSettings) -> tuple[Any, ...]:
    """Return what a NodeClass with this spec leads to in a new account: status, offers, templates and fleets."""
    clock = VirtualClock(START)
    account = InProcessAccount(clock, types=KNOWN_TYPES)
    account.seed(cluster="demo", kubernetes_version="1.34")
    account.identity.roles.update({"first", "second"})
    account.reserved_capacity.reserve("m5.large", "us-east-1a", 2, tags={"team": "ml"})
    account.reserved_capacity.add_group("near")
    account.client("iam").create_instance_profile(InstanceProfileName="mine")
    ec2 = RecordingEc2(account.client("ec2"))
    clients = Clients(lambda service, region: ec2 if service == "ec2" else account.client(service), REGION)
    provider = AwsCloudProvider(clients, replace(settings, parallel_reads=False), clock)
    base = {"amiSelectorTerms": [{"alias": "al2023@latest"}], "role": "first"}
    base |= {"subnetSelectorTerms": DISCOVERED, "securityGroupSelectorTerms": DISCOVERED, **spec}
    given = {key: value for key, value in base.items() if value is not None}
    metadata = {"name": "default", "uid": "u", "generation": 1, "creationTimestamp": "2026-11-02T07:00:00Z"}
    body: dict[str, Any] = {"metadata": metadata, "spec": given}
    body["status"] = provider.resolve(body, clock.now())
    if not body["status"]["subnets"]:
        return (body["status"],)
    types = provider.get_instance_types(body)
    state = NodeClassState(
        name="default", uid="u", kind="EC2NodeClass", group=labels.AWS_GROUP, generation=1, ready=True, raw=body
    )
    claim = launching_claim("claim", clock.now())
    [outcome] = provider.launch([LaunchRequest(claim=claim, node_class=state, instance_types=types)])
    return body["status"], types, ec2.requests, type(outcome)


def test_equal_node_classes_lead_to_equal_requests(settings):
    """Otherwise the next test would prove nothing."""
    assert observed({}, settings) == observed({}, settings)
    assert [name for name, _ in observed({}, settings)[2]][-1] == "create_fleet"


@pytest.mark.parametrize("path", EFFECTS)
def test_a_change_of_the_field_changes_what_aws_is_asked_for(settings, path):
    """The status, the instance types and their offerings, or a request that creates something in AWS differ."""
    before, after = EFFECTS[path]
    assert observed(before, settings) != observed(after, settings)
