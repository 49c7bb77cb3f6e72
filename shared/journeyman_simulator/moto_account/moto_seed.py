"""Seeds an account on moto with the resources that Journeyman requires: EKS cluster, network, node role, EKS images."""

from __future__ import annotations

from typing import Any

from moto.ec2.models import ec2_backends
from moto.eks.models import eks_backends
from moto.ssm.models import Parameter, ssm_backends

from journeyman_simulator.cloud_rules.published_images import PublishedImage, SeededAccount, published_images
from journeyman_simulator.moto_account.moto_server import MotoAccount

_TRUST = (
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"%s"},"Action":"sts:AssumeRole"}]}'
)


def seed_account(
    aws: MotoAccount,
    *,
    cluster: str = "demo",
    kubernetes_version: str = "1.33",
    endpoint: str | None = None,
    certificate_authority: str | None = None,
) -> SeededAccount:
    """Create the resources that an EC2NodeClass selects: tagged subnets and security group, node role, images.

    Args:
        aws: The account, inside its context.
        cluster: The name of the EKS cluster, and the value of the `karpenter.sh/discovery` tags.
        kubernetes_version: The version of the cluster and its images, such as "1.33".
        endpoint: The URL of the cluster's API server; by default one that does not exist.
        certificate_authority: The API server's CA as base64 of a PEM; by default a made-up one.
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
    return SeededAccount(
        cluster=cluster,
        endpoint=record.endpoint,
        role=role,
        security_group=group,
        subnets=subnets,
        images=_images(aws, kubernetes_version),
    )


def _network(aws: MotoAccount, cluster: str) -> tuple[tuple[str, ...], str]:
    """Tag the default subnets and create a node security group; return their ids."""
    ec2 = aws.client("ec2")
    found = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
    subnets = tuple(subnet["SubnetId"] for subnet in sorted(found, key=lambda subnet: str(subnet["AvailabilityZone"])))
    group = ec2.create_security_group(
        GroupName=f"{cluster}-node", Description="EKS node shared security group", VpcId=found[0]["VpcId"]
    )["GroupId"]
    ec2.create_tags(Resources=[*subnets, group], Tags=[{"Key": "karpenter.sh/discovery", "Value": cluster}])
    return subnets, group


def _roles(aws: MotoAccount, cluster: str, node_role: str) -> str:
    """Create the node role and the cluster role, without policies, which moto does not check; return the latter's ARN."""
    iam = aws.client("iam")
    iam.create_role(RoleName=node_role, AssumeRolePolicyDocument=_TRUST % "ec2.amazonaws.com")
    role = iam.create_role(RoleName=f"{cluster}-cluster", AssumeRolePolicyDocument=_TRUST % "eks.amazonaws.com")
    return str(role["Role"]["Arn"])


def _images(aws: MotoAccount, version: str) -> dict[str, str]:
    ec2 = aws.client("ec2")
    ids = {}
    for image in published_images(version):
        image_id = ec2.register_image(Name=image.name, Architecture=image.architecture)["ImageId"]
        _set_image_fields(aws, image_id, image)
        ids[image.name] = image_id
        for name in image.parameters:
            _publish(aws, name, image_id)
    return ids


def _set_image_fields(aws: MotoAccount, image_id: str, image: PublishedImage) -> None:
    """Set the fields that moto's RegisterImage ignores, and Amazon as the owner."""
    record = ec2_backends[aws.account][aws.region].amis[image_id]
    record.architecture = image.architecture
    record.root_device_name = "/dev/xvda"
    record.root_device_type = "ebs"
    record.virtualization_type, record.hypervisor = "hvm", "xen"
    record.owner_id, record.owner_alias = image.owner, "amazon"
    record.launch_permissions = [{"Group": "all"}]


def _publish(aws: MotoAccount, name: str, value: str) -> None:
    """Write a parameter below /aws, which PutParameter rejects."""
    make: Any = Parameter  # the stubs declare it as abstract, but moto instantiates it
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
