"""Makes a simulated account fit a cluster that was recorded elsewhere.

A cluster given as YAML speaks of subnets, security groups, roles and instances of its own account. So that its
EC2NodeClasses resolve and its NodeClaims have their instances, the simulated account gets what they name: tags on the
default subnets and on a security group, the node role, and one instance for each NodeClaim, under its own id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim
from journeyman_simulator.aws.account import Account

_ASSUMED_BY_EC2 = '{"Version":"2012-10-17","Statement":[]}'
JSON = Mapping[str, Any]


def furnish(account: Account, node_classes: Iterable[JSON]) -> None:
    """Give the account what the NodeClasses select by tag, and the roles they name. Safe to repeat."""
    ec2, iam = account.client("ec2"), account.client("iam")
    subnets = [s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]]
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    for node_class in node_classes:
        spec = node_class["spec"]
        for term in spec.get("subnetSelectorTerms", ()):
            _tag(ec2, subnets, term.get("tags", {}))
        for term in spec.get("securityGroupSelectorTerms", ()):
            _tag(ec2, [group], term.get("tags", {}))
        if spec.get("role"):
            _ensure_role(iam, spec["role"])


def adopt(account: Account, claims: Iterable[NodeClaim], cluster: str) -> dict[str, str]:
    """One running instance for each launched NodeClaim, tagged as ours.

    Returns:
        The instance ids the cloud gave, by the id that the claim knows: a cloud picks its own.
    """
    ec2 = account.client("ec2")
    subnet_of = {s["AvailabilityZone"]: s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]}
    image = ec2.describe_images()["Images"][0]["ImageId"]
    given: dict[str, str] = {}
    for claim in sorted(claims, key=lambda c: c.metadata.name):
        wanted = claim.status.provider_id.rsplit("/", 1)[-1]
        zone = claim.metadata.labels.get(labels.ZONE, "")
        if not wanted or zone not in subnet_of:
            continue
        given[wanted] = _run(ec2, claim, image=image, subnet=subnet_of[zone], cluster=cluster)
    return given


def _run(ec2: Any, claim: NodeClaim, *, image: str, subnet: str, cluster: str) -> str:
    own = claim.metadata.labels
    tags = {
        "eks:eks-cluster-name": cluster,
        f"kubernetes.io/cluster/{cluster}": "owned",
        labels.NODEPOOL: own.get(labels.NODEPOOL, ""),
        f"{labels.AWS_GROUP}/ec2nodeclass": claim.spec.node_class_ref.name,
        labels.NODECLAIM_TAG: claim.metadata.name,
        f"{labels.OWN_GROUP}/nodeclaim-uid": claim.metadata.uid,
    }
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}} if own.get(labels.CAPACITY_TYPE) == labels.SPOT else {}
    answer = ec2.run_instances(
        ImageId=image,
        InstanceType=own.get(labels.INSTANCE_TYPE, "m5.large"),
        SubnetId=subnet,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in sorted(tags.items())]}
        ],
        **spot,
    )
    return str(answer["Instances"][0]["InstanceId"])


def _tag(ec2: Any, resources: list[str], tags: JSON) -> None:
    if tags:
        pairs = [{"Key": key, "Value": "" if value == "*" else value} for key, value in sorted(tags.items())]
        ec2.create_tags(Resources=resources, Tags=pairs)


def _ensure_role(iam: Any, name: str) -> None:
    try:
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=_ASSUMED_BY_EC2)
    except iam.exceptions.EntityAlreadyExistsException:
        return
