"""Instance profiles: the identity that nodes get, made from a role where the user gives one.

Restates: karpenter-provider-aws pkg/providers/instanceprofile/instanceprofile.go,
pkg/controllers/nodeclass/instanceprofile.go.
Differs: the name is a digest of what the profile is for, upstream's is random: a run that died halfway finds its own.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any, Final

from journeyman.cloud.aws import tags
from journeyman.cloud.aws.errors import code_of, translated
from journeyman.cloud.aws.settings import AwsSettings, Clients
from journeyman.cloud.aws.ttl_cache import TtlCache
from journeyman.cloud.aws.view import NodeClassView
from journeyman.core.api import labels
from journeyman.errors import CloudProviderError
from journeyman.ports import Clock

_TTL: Final = timedelta(minutes=15)  # cache.go `InstanceProfileTTL`
_NO_SUCH: Final = "NoSuchEntity"
_ALREADY_THERE: Final = "EntityAlreadyExists"
_ROLE_THERE: Final = "LimitExceeded"  # a profile holds one role


class RoleNotFoundError(Exception):
    """The NodeClass names a role that does not exist. Becomes a condition; never leaves this package."""


class InstanceProfiles:
    """Profiles of one cluster."""

    def __init__(self, clients: Clients, settings: AwsSettings, clock: Clock) -> None:
        self._clients = clients
        self._settings = settings
        self._ready: TtlCache[str] = TtlCache(clock, _TTL)

    def ensure(self, node_class: NodeClassView) -> str:
        """Name of the NodeClass's profile, which exists and holds the role; empty if the NodeClass names neither.

        Raises:
            RoleNotFoundError: There is no such role.
            CloudProviderError: IAM could not be asked, or refused.
        """
        given = str(node_class.spec.get("instanceProfile") or "")
        # AddRoleToInstanceProfile takes no path
        role = str(node_class.spec.get("role") or "").rpartition("/")[2]
        if given or not role:
            return given
        name = profile_name(self._settings, node_class, role)
        return self._ready.get(name, lambda: self._make(name, role, node_class))

    def _make(self, name: str, role: str, node_class: NodeClassView) -> str:
        current = self._roles(name)
        if current is None:
            self._create(name, node_class)
            current = []
        if role not in current:
            self._add_role(name, role)
        return name

    def _roles(self, name: str) -> list[str] | None:
        """The roles in a profile; None if there is no such profile."""
        try:
            with translated("iam:GetInstanceProfile", instance_profile=name):
                profile = self._clients.iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        except CloudProviderError as error:
            if code_of(error) == _NO_SUCH:
                return None
            raise
        return [role["RoleName"] for role in profile["Roles"]]

    def _create(self, name: str, node_class: NodeClassView) -> None:
        settings = self._settings
        try:
            with translated("iam:CreateInstanceProfile", instance_profile=name):
                self._clients.iam.create_instance_profile(
                    InstanceProfileName=name,
                    Path=f"/karpenter/{settings.region}/{settings.cluster_name}/{node_class.uid}/",
                    Tags=_tags(settings, node_class),
                )
        except CloudProviderError as error:
            if code_of(error) != _ALREADY_THERE:
                raise

    def _add_role(self, name: str, role: str) -> None:
        try:
            with translated("iam:AddRoleToInstanceProfile", instance_profile=name, role=role):
                self._clients.iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)
        except CloudProviderError as error:
            if code_of(error) == _NO_SUCH:
                raise RoleNotFoundError(f"role {role} does not exist") from error
            if code_of(error) != _ROLE_THERE:  # a run beside us was faster: the name stands for this very role
                raise


def profile_name(settings: AwsSettings, node_class: NodeClassView, role: str) -> str:
    """`<cluster>_<digest>`; another role, another profile, since instances keep the one they started with."""
    identity = "\n".join((settings.region, node_class.name, node_class.uid, role))
    return f"{settings.cluster_name}_{hashlib.sha256(identity.encode()).hexdigest()[:20]}"


def _tags(settings: AwsSettings, node_class: NodeClassView) -> list[dict[str, Any]]:
    return tags.to_aws(
        {
            **node_class.tags,
            f"kubernetes.io/cluster/{settings.cluster_name}": "owned",
            tags.CLUSTER: settings.cluster_name,
            tags.NODE_CLASS: node_class.name,
            labels.REGION: settings.region,
        }
    )
