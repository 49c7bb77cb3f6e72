"""EC2NodeClasses: defaults, exclusive fields, and rejected values."""

import pytest

from journeyman.core.api.ec2nodeclass import EC2NodeClass
from journeyman.core.api.model import parse
from journeyman.errors import InvalidObjectError


def a_node_class(**spec):
    """A manifest with these spec fields; None removes one."""
    return {
        "metadata": {"name": "default"},
        "spec": {
            "role": "KarpenterNodeRole",
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "subnetSelectorTerms": [{"tags": {"karpenter.sh/discovery": "prod"}}],
            "securityGroupSelectorTerms": [{"tags": {"karpenter.sh/discovery": "prod"}}],
            **spec,
        },
    }


def test_metadata_options_default_to_imdsv2_with_one_hop():
    """Each missing field gets the CRD's default."""
    options = parse(EC2NodeClass, a_node_class(metadataOptions={"httpPutResponseHopLimit": 2})).spec.metadata_options
    assert options.to_wire() == {
        "httpEndpoint": "enabled",
        "httpProtocolIPv6": "disabled",
        "httpPutResponseHopLimit": 2,
        "httpTokens": "required",
    }


@pytest.mark.parametrize(
    ("spec", "family"),
    [
        ({}, "AL2023"),
        ({"amiFamily": "AL2023"}, "AL2023"),
        ({"amiFamily": "Custom"}, "Custom"),
        ({"amiFamily": "AL2", "amiSelectorTerms": [{"id": "ami-1"}]}, "AL2"),
        ({"amiSelectorTerms": [{"alias": "windows2022@latest"}]}, "Windows2022"),
    ],
)
def test_ami_family_is_derived_from_the_alias(spec, family):
    """Custom is valid with any alias."""
    assert parse(EC2NodeClass, a_node_class(**spec)).spec.resolved_ami_family == family


@pytest.mark.parametrize("size", ["1Gi", "59000Gi", "64000G", "1Ti", "18Ti", "58Ti", "64T"])
def test_volume_size_is_from_1gi_to_58ti(size):
    """Sizes are whole Gi, G, Ti or T."""
    mapping = {"deviceName": "/dev/xvda", "ebs": {"volumeSize": size}}
    node_class = parse(EC2NodeClass, a_node_class(blockDeviceMappings=[mapping]))
    assert node_class.spec.block_device_mappings[0].ebs.volume_size == size


def test_kubelet_accepts_unknown_fields():
    """Its errors become a condition."""
    node_class = parse(EC2NodeClass, a_node_class(kubelet={"maxPods": 110, "whatever": {"a": [1]}}))
    assert node_class.spec.kubelet == {"maxPods": 110, "whatever": {"a": [1]}}


def test_aws_field_spellings_are_unchanged_by_the_round_trip():
    """They are associatePublicIPAddress, kmsKeyID, ownerID, zoneID and ipPrefixCount."""
    raw = a_node_class(
        associatePublicIPAddress=False,
        ipPrefixCount=2,
        capacityReservationSelectorTerms=[{"tags": {"a": "b"}, "ownerID": "123456789012"}],
        blockDeviceMappings=[{"rootVolume": True, "ebs": {"snapshotID": "snap-1", "kmsKeyID": "arn:aws:kms:x"}}],
        amiSelectorTerms=[{"ssmParameter": "/my/ami"}],
        amiFamily="AL2023",
    )
    raw["status"] = {
        "subnets": [{"id": "subnet-1", "zone": "eu-west-1a", "zoneID": "euw1-az1"}],
        "capacityReservations": [
            {
                "availabilityZone": "eu-west-1a",
                "id": "cr-1",
                "instanceMatchCriteria": "open",
                "instanceType": "m5.large",
                "ownerID": "123456789012",
            }
        ],
    }
    wire = parse(EC2NodeClass, raw).to_wire()
    assert parse(EC2NodeClass, wire).to_wire() == wire
    for field in (
        "associatePublicIPAddress",
        "ipPrefixCount",
        "capacityReservationSelectorTerms",
        "blockDeviceMappings",
    ):
        assert wire["spec"][field] == raw["spec"][field]
    assert wire["status"]["subnets"] == raw["status"]["subnets"]
    assert wire["status"]["capacityReservations"][0]["state"] == "active"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"role": None}, r"exactly one of 'role' and 'instanceProfile'"),
        ({"instanceProfile": "p"}, r"exactly one of 'role' and 'instanceProfile'"),
        ({"role": ""}, r"spec\.role: .*at least 1 character"),
        ({"amiFamily": "Bottlerocket"}, r"amiFamily must be 'AL2023' or 'Custom'"),
        ({"amiFamily": "AL3"}, r"spec\.amiFamily: Input should be 'AL2'"),
        ({"amiSelectorTerms": [{"id": "ami-1"}]}, r"must specify amiFamily"),
        ({"amiSelectorTerms": []}, r"spec\.amiSelectorTerms: .*at least 1 item"),
        ({"amiSelectorTerms": None}, r"spec\.amiSelectorTerms: required, but missing"),
        ({"amiSelectorTerms": [{"owner": "self"}]}, r"term 0: expected at least one.*ssmParameter"),
        ({"amiSelectorTerms": [{"id": "ami-1", "name": "x"}], "amiFamily": "AL2"}, r"'id' is mutually exclusive"),
        ({"amiSelectorTerms": [{"alias": "al2@latest", "tags": {"a": "b"}}]}, r"'alias' is mutually exclusive"),
        ({"amiSelectorTerms": [{"alias": "al2023@latest"}, {"id": "ami-1"}]}, r"'alias' must be the only term"),
        ({"amiSelectorTerms": [{"alias": "al2023"}]}, r"must match the format 'family@version'"),
        ({"amiSelectorTerms": [{"alias": "ubuntu@latest"}]}, r"family 'ubuntu' is not supported"),
        ({"amiSelectorTerms": [{"alias": "windows2019@v1"}]}, r"windows families may only specify"),
        ({"amiSelectorTerms": [{"alias": "al2023@" + "v" * 30}]}, r"alias: .*at most 30 characters"),
        ({"subnetSelectorTerms": [{}]}, r"term 0: expected at least one, got none, of tags, id"),
        ({"subnetSelectorTerms": [{"id": "subnet-1", "tags": {"a": "b"}}]}, r"'id' is mutually exclusive with tags"),
        ({"subnetSelectorTerms": [{"id": "sn-1"}]}, r"subnetSelectorTerms\[0\]\.id: String should match"),
        ({"subnetSelectorTerms": [{"tags": {"a": ""}}]}, r"empty tag keys or values"),
        ({"subnetSelectorTerms": [{"id": "subnet-1"}] * 31}, r"subnetSelectorTerms: .*at most 30"),
        ({"securityGroupSelectorTerms": [{"name": "a", "id": "sg-1"}]}, r"'id' is mutually exclusive with tags, name"),
        ({"securityGroupSelectorTerms": [{"name": "a", "tags": {"b": "c"}}]}, r"'name' is mutually exclusive"),
        ({"capacityReservationSelectorTerms": [{"ownerID": "123456789012"}]}, r"of tags, id, instanceMatchCriteria"),
        ({"capacityReservationSelectorTerms": [{"id": "cr-1", "ownerID": "12"}]}, r"ownerID: String should match"),
        ({"placementGroupSelector": {}}, r"exactly one of 'name' and 'id'"),
        ({"tags": {"": "x"}}, r"a tag key is empty"),
        ({"tags": {"kubernetes.io/cluster/prod": "owned"}}, r"set by the controller itself"),
        ({"tags": {"eks:eks-cluster-name": "prod"}}, r"set by the controller itself"),
        ({"blockDeviceMappings": [{"rootVolume": True}] * 2}, r"only one may have rootVolume"),
        ({"blockDeviceMappings": [{"ebs": {}}]}, r"snapshotID or volumeSize must be defined"),
        ({"blockDeviceMappings": [{"ebs": {"volumeSize": "10"}}]}, r"volumeSize: '10' is not a volume size"),
        (
            {"blockDeviceMappings": [{"ebs": {"volumeSize": "10Gi", "volumeInitializationRate": 100}}]},
            r"snapshotID must be set",
        ),
        (
            {"blockDeviceMappings": [{"ebs": {"volumeSize": "10Gi", "volumeType": "gp9"}}]},
            r"volumeType: Input should be",
        ),
        ({"instanceStorePolicy": "RAID1"}, r"instanceStorePolicy: Input should be 'RAID0'"),
        ({"metadataOptions": {"httpPutResponseHopLimit": 65}}, r"httpPutResponseHopLimit: .*less than or equal to 64"),
        ({"connectionTracking": {}}, r"at least one of tcpEstablishedTimeout"),
        ({"connectionTracking": {"udpTimeout": 61}}, r"udpTimeout: .*less than or equal to 60"),
        ({"ipPrefixCount": -1}, r"ipPrefixCount: .*greater than or equal to 0"),
        ({"kubelet": ["maxPods"]}, r"spec\.kubelet: Input should be a valid dictionary"),
    ],
)
def test_ec2nodeclass_that_karpenter_rejects_is_rejected(spec, words):
    """Each rule of the CRD applies, and the message names the field."""
    with pytest.raises(InvalidObjectError, match=words):
        parse(EC2NodeClass, a_node_class(**spec))


@pytest.mark.parametrize(
    ("interfaces", "words"),
    [
        ([(1, 0, "interface")], r"a primary interface is required"),
        ([(0, 0, "interface"), (0, 0, "efa-only")], r"share networkCardIndex and deviceIndex"),
        ([(0, 0, "interface"), (1, 0, "efa-only"), (1, 1, "efa-only")], r"at most one efa-only interface"),
    ],
)
def test_network_interfaces_need_a_primary_and_unique_indexes(interfaces, words):
    """`interfaces` has card, device and type of each interface."""
    listed = [{"networkCardIndex": c, "deviceIndex": d, "interfaceType": t} for c, d, t in interfaces]
    with pytest.raises(InvalidObjectError, match=words):
        parse(EC2NodeClass, a_node_class(networkInterfaces=listed))


def test_mixed_selector_term_beside_a_valid_one_is_valid():
    """Karpenter rejects `id` with other fields only if every term has them."""
    terms = [{"id": "subnet-1", "tags": {"a": "b"}}, {"id": "subnet-2"}]
    assert len(parse(EC2NodeClass, a_node_class(subnetSelectorTerms=terms)).spec.subnet_selector_terms) == 2
