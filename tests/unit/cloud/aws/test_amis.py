"""Images: how aliases are resolved, and which of several images is used."""

from datetime import datetime, timedelta, timezone

import pytest
from msgspec.structs import replace

from journeyman.cloud.aws.ami_families import BY_ALIAS
from journeyman.cloud.aws.amis import AmiProvider, UnsupportedAliasError, alias_parameters, check_supported
from journeyman.cloud.aws.aws_settings import Clients
from journeyman.cloud.aws.network_discovery import filter_sets
from journeyman.core.api.ec2nodeclass_selectors import SecurityGroupSelectorTerm
from tests.unit.cloud.aws.conftest import START, Pages, node_class

PREFIX = "/aws/service/eks/optimized-ami/1.34"


class Parameters:
    """An SSM client with these parameters, which counts its requests."""

    def __init__(self, **values):
        self.values = values
        self.asked = 0

    def get_parameters(self, *, Names):  # noqa: N803 - the API's word
        assert len(Names) <= 10
        self.asked += 1
        return {"Parameters": [{"Name": n, "Value": self.values[n]} for n in Names if n in self.values]}


def image(id_, days_old, *, name="image", arch="x86_64", deprecated=False):
    created = START - timedelta(days=days_old)
    ends = START + timedelta(days=-1 if deprecated else 100)
    stamp = "%Y-%m-%dT%H:%M:%S.000Z"
    return {
        "ImageId": id_,
        "Name": name,
        "Architecture": arch,
        "CreationDate": created.strftime(stamp),
        "DeprecationTime": ends.strftime(stamp),
    }


@pytest.fixture
def find(settings, clock):
    """Return a function that finds a NodeClass's images among these, with these parameters."""

    def run(class_, *images, ssm=None):
        ec2 = Pages(describe_images=[{"Images": list(images)}])
        clients = Clients(lambda service, region: ssm if service == "ssm" else ec2, "us-east-1")
        return AmiProvider(clients, replace(settings, kubernetes_version="1.34"), clock).find(class_, clock.now())

    return run


BY_NAME = [{"name": "mine-*"}]


def test_newest_image_that_is_not_deprecated_is_used(find):
    """It is chosen for each architecture, and of equal age by its name; deprecated images are used only if there is no other.

    One that names no time is never deprecated.
    """
    class_ = node_class(amiSelectorTerms=BY_NAME, amiFamily="AL2023")
    found = find(
        class_,
        image("ami-old", 20),
        image("ami-new", 10),
        image("ami-newest", 1, deprecated=True),
        image("ami-arm", 5, arch="arm64", deprecated=True),
        image("ami-mac", 1, arch="x86_64_mac"),
    )

    assert [(i.id, i.deprecated) for i in found] == [("ami-arm", True), ("ami-new", False)]
    assert found[0].created == datetime(2026, 10, 28, 8, 0, tzinfo=timezone.utc)
    two = (image("ami-1", 1, name="a"), image("ami-2", 1, name="b"))
    assert [[i.id for i in find(class_, *images)] for images in (two, reversed(two))] == [["ami-2"], ["ami-2"]]
    endless = {key: value for key, value in two[0].items() if key != "DeprecationTime"}
    assert [i.deprecated for i in find(class_, endless)] == [False]


def test_alias_images_have_requirements(find):
    """Each variant has its requirements; a variant that EKS does not publish is skipped."""
    ssm = Parameters(
        **{
            f"{PREFIX}/amazon-linux-2023/x86_64/standard/recommended/image_id": "ami-std",
            f"{PREFIX}/amazon-linux-2023/x86_64/nvidia/recommended/image_id": "ami-gpu",
        }
    )
    found = find(node_class(), image("ami-std", 2), image("ami-gpu", 1), ssm=ssm)

    assert [i.to_status() for i in found] == [
        {
            "id": "ami-gpu",
            "name": "image",
            "requirements": [
                {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
                {"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "Exists"},
            ],
        },
        {
            "id": "ami-std",
            "name": "image",
            "requirements": [
                {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
                {"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "DoesNotExist"},
                {"key": "karpenter.k8s.aws/instance-accelerator-count", "operator": "DoesNotExist"},
            ],
        },
    ]
    assert find(node_class(), ssm=Parameters()) == ()


def test_alias_is_read_once_a_day_unless_its_image_is_deprecated(settings, clock):
    """A deprecated image means that a newer one has been published."""
    path = f"{PREFIX}/amazon-linux-2023/x86_64/standard/recommended/image_id"
    ssm, ec2 = Parameters(**{path: "ami-1"}), Pages(describe_images=[{"Images": [image("ami-1", 1)]}])
    clients = Clients(lambda service, region: ssm if service == "ssm" else ec2, "us-east-1")
    images = AmiProvider(clients, replace(settings, kubernetes_version="1.34"), clock)
    for _ in range(3):
        images.find(node_class(), clock.now())
        clock.advance(3600)
    assert ssm.asked == 1

    ec2.pages["describe_images"] = [{"Images": [image("ami-1", 1, deprecated=True)]}]
    for _ in range(3):
        images.find(node_class(), clock.now())
        clock.advance(3600)
    assert ssm.asked == 3


def test_parameter_without_an_image_id_is_ignored(find):
    """It must not become a filter that matches every image."""
    class_ = node_class(amiSelectorTerms=[{"ssmParameter": "/mine"}], amiFamily="AL2023")
    assert find(class_, image("ami-any", 1), ssm=Parameters(**{"/mine": "hello"})) == ()
    assert [i.id for i in find(class_, image("ami-1", 1), ssm=Parameters(**{"/mine": "ami-1"}))] == ["ami-1"]


@pytest.mark.parametrize(
    ("alias", "version", "expected"),
    [
        ("al2023", "latest", f"{PREFIX}/amazon-linux-2023/arm64/nvidia/recommended/image_id"),
        (
            "al2023",
            "v20260715",
            f"{PREFIX}/amazon-linux-2023/x86_64/neuron/amazon-eks-node-al2023-x86_64-neuron-1.34-v20260715/image_id",
        ),
        ("al2", "latest", f"{PREFIX}/amazon-linux-2-gpu/recommended/image_id"),
        ("al2", "v20240807", f"{PREFIX}/amazon-linux-2-arm64/amazon-eks-arm64-node-1.34-v20240807/image_id"),
        ("bottlerocket", "v1.44.0", "/aws/service/bottlerocket/aws-k8s-1.34-nvidia/x86_64/1.44.0/image_id"),
        (
            "windows2022",
            "latest",
            "/aws/service/ami-windows-latest/Windows_Server-2022-English-Core-EKS_Optimized-1.34/image_id",
        ),
    ],
)
def test_aliases_map_to_ssm_parameters(alias, version, expected):
    assert expected in alias_parameters(BY_ALIAS[alias], "1.34", version)


@pytest.mark.parametrize(
    ("alias", "version", "supported"),
    [("al2", "1.32", True), ("al2", "1.33", False), ("windows2025", "1.34", False), ("windows2025", "1.35", True)],
)
def test_unsupported_alias_is_reported(alias, version, supported):
    """EKS publishes no AL2 from 1.33 on, and Windows 2025 only from 1.35."""
    if supported:
        check_supported(BY_ALIAS[alias], version)
        return
    with pytest.raises(UnsupportedAliasError):
        check_supported(BY_ALIAS[alias], version)


def test_terms_are_alternatives_and_all_fields_of_a_term_apply():
    """Ids of all terms are one request; a term without fields matches nothing."""
    terms = [
        SecurityGroupSelectorTerm(tags={"team": "a", "any": "*"}, name="web"),
        SecurityGroupSelectorTerm(id="sg-2"),
        SecurityGroupSelectorTerm(id="sg-1"),
        SecurityGroupSelectorTerm(),
    ]

    assert filter_sets(terms, id_filter="group-id") == (
        (("group-name", ("web",)), ("tag-key", ("any",)), ("tag:team", ("a",))),
        (("group-id", ("sg-1", "sg-2")),),
    )
