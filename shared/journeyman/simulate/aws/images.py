"""What an AWS account has before Journeyman comes: an EKS cluster, its network, a node role, and EKS's images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from moto.ec2.models import ec2_backends
from moto.eks.models import eks_backends
from moto.ssm.models import Parameter, ssm_backends
from msgspec import Struct

from journeyman.simulate.aws.server import SimulatedAws

_AL2023_RELEASE = "v20260715"
_AL2_RELEASE = "v20260715"
_BOTTLEROCKET_RELEASE = "1.44.0"
_EKS_OWNER, _BOTTLEROCKET_OWNER = "602401143452", "092701018921"  # the accounts that publish them in most regions
_TRUST = (
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"%s"},"Action":"sts:AssumeRole"}]}'
)


class Seeded(Struct, frozen=True, kw_only=True):
    """What was made."""

    cluster: str
    endpoint: str
    role: str
    security_group: str
    subnets: tuple[str, ...]
    images: dict[str, str]  # image id by image name


class _Image(NamedTuple):
    name: str
    architecture: str
    owner: str
    parameters: tuple[str, ...]  # SSM names that lead to it


def seed(
    aws: SimulatedAws,
    *,
    cluster: str = "demo",
    kubernetes_version: str = "1.33",
    endpoint: str | None = None,
    certificate_authority: str | None = None,
) -> Seeded:
    """Make an account that is ready for `EC2NodeClass` selectors and image aliases.

    Args:
        aws: An entered simulation.
        cluster: Name of the EKS cluster, and value of the `karpenter.sh/discovery` tags.
        kubernetes_version: Of the cluster and its images, as "1.33".
        endpoint: Address of the cluster's API server; AWS-like fiction if not given.
        certificate_authority: Its CA, base64 of a PEM; fiction if not given.
    """
    role = f"KarpenterNodeRole-{cluster}"
    subnets, group = _network(aws, cluster)
    cluster_role = _roles(aws, cluster, role)
    aws.client("eks").create_cluster(
        name=cluster,
        version=kubernetes_version,
        roleArn=cluster_role,
        resourcesVpcConfig={"subnetIds": list(subnets), "securityGroupIds": [group]},
        kubernetesNetworkConfig={"serviceIpv4Cidr": "10.100.0.0/16", "ipFamily": "ipv4"},
    )
    record = eks_backends[aws.account][aws.region].clusters[cluster]
    if endpoint:
        record.endpoint = endpoint
    if certificate_authority:
        record.certificate_authority = {"data": certificate_authority}
    return Seeded(
        cluster=cluster,
        endpoint=record.endpoint,
        role=role,
        security_group=group,
        subnets=subnets,
        images=_images(aws, kubernetes_version),
    )


def _network(aws: SimulatedAws, cluster: str) -> tuple[tuple[str, ...], str]:
    """Tag the default subnets, make a node security group; their ids."""
    ec2 = aws.client("ec2")
    found = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
    subnets = tuple(subnet["SubnetId"] for subnet in sorted(found, key=lambda subnet: str(subnet["AvailabilityZone"])))
    group = ec2.create_security_group(
        GroupName=f"{cluster}-node", Description="EKS node shared security group", VpcId=found[0]["VpcId"]
    )["GroupId"]
    ec2.create_tags(Resources=[*subnets, group], Tags=[{"Key": "karpenter.sh/discovery", "Value": cluster}])
    return subnets, group


def _roles(aws: SimulatedAws, cluster: str, node_role: str) -> str:
    """The node role and the cluster role, whose ARN is returned; without policies, as nobody checks rights here."""
    iam = aws.client("iam")
    iam.create_role(RoleName=node_role, AssumeRolePolicyDocument=_TRUST % "ec2.amazonaws.com")
    role = iam.create_role(RoleName=f"{cluster}-cluster", AssumeRolePolicyDocument=_TRUST % "eks.amazonaws.com")
    return str(role["Role"]["Arn"])


def _images(aws: SimulatedAws, version: str) -> dict[str, str]:
    ec2 = aws.client("ec2")
    ids = {}
    for image in (*_al2023(version), *_al2(version), *_bottlerocket(version)):
        image_id = ec2.register_image(Name=image.name, Architecture=image.architecture)["ImageId"]
        _finish(aws, image_id, image)
        ids[image.name] = image_id
        for name in image.parameters:
            _publish(aws, name, image_id)
    return ids


def _finish(aws: SimulatedAws, image_id: str, image: _Image) -> None:
    """What RegisterImage drops in moto, and what only AWS can say: that it owns the image."""
    record = ec2_backends[aws.account][aws.region].amis[image_id]
    record.architecture = image.architecture
    record.root_device_name = "/dev/xvda"
    record.root_device_type = "ebs"
    record.virtualization_type, record.hypervisor = "hvm", "xen"
    record.owner_id, record.owner_alias = image.owner, "amazon"
    record.launch_permissions = [{"Group": "all"}]


def _al2023(version: str) -> Iterator[_Image]:
    """Restates: awslabs/amazon-eks-ami names and the SSM paths of the EKS user guide; neuron is x86_64 only."""
    for arch, variant in (
        ("x86_64", "standard"),
        ("arm64", "standard"),
        ("x86_64", "nvidia"),
        ("arm64", "nvidia"),
        ("x86_64", "neuron"),
    ):
        name = f"amazon-eks-node-al2023-{arch}-{variant}-{version}-{_AL2023_RELEASE}"
        path = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/{arch}/{variant}"
        yield _Image(name, arch, _EKS_OWNER, (f"{path}/recommended/image_id", f"{path}/{name}/image_id"))


def _al2(version: str) -> Iterator[_Image]:
    if tuple(int(part) for part in version.split(".")) >= (1, 33):
        return  # EKS stopped publishing AL2 images with 1.33
    for suffix, arch in (("", "x86_64"), ("-arm64", "arm64"), ("-gpu", "x86_64")):
        name = f"amazon-eks{suffix}-node-{version}-{_AL2_RELEASE}"
        path = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2{suffix}"
        yield _Image(name, arch, _EKS_OWNER, (f"{path}/recommended/image_id", f"{path}/{name}/image_id"))


def _bottlerocket(version: str) -> Iterator[_Image]:
    for variant in ("", "-nvidia"):
        for arch in ("x86_64", "arm64"):
            flavour = f"aws-k8s-{version}{variant}"
            name = f"bottlerocket-{flavour}-{'aarch64' if arch == 'arm64' else arch}-v{_BOTTLEROCKET_RELEASE}"
            path = f"/aws/service/bottlerocket/{flavour}/{arch}"
            yield _Image(
                name, arch, _BOTTLEROCKET_OWNER, (f"{path}/latest/image_id", f"{path}/{_BOTTLEROCKET_RELEASE}/image_id")
            )


def _publish(aws: SimulatedAws, name: str, value: str) -> None:
    """Only AWS itself may write below /aws, so this goes around PutParameter."""
    make: Any = Parameter  # typed as abstract, though moto makes them too
    parameters: Any = ssm_backends[aws.account][aws.region]._parameters  # noqa: SLF001 - moto offers no other way
    parameters[name].append(
        make(
            account_id=aws.account,
            name=name,
            value=value,
            parameter_type="String",
            description=None,
            allowed_pattern=None,
            keyid=None,
            last_modified_date=aws.time.now(),
            version=1,
            data_type="aws:ec2:image",
        )
    )
