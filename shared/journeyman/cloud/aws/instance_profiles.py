"""Instance profiles of nodes, created from `spec.role` of an EC2NodeClass.

Restates: karpenter-provider-aws pkg/providers/instanceprofile/instanceprofile.go,
pkg/controllers/nodeclass/instanceprofile.go.
Differs: the name is a digest of region, NodeClass and role, where upstream's is random, so that a run after a crash finds
the profile. `release` does not find profiles without a path, which Karpenter created before 1.8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from operator import attrgetter
from threading import Lock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from cachetools.keys import hashkey

from journeyman.cloud.aws import tags
from journeyman.cloud.aws.aws_errors import error_code, translated
from journeyman.cloud.aws.aws_settings import AwsSettings, Clients
from journeyman.cloud.aws.nodeclass_view import NodeClassView, ec2_node_class, metadata_of
from journeyman.cloud.caching import ttl_cache
from journeyman.core.api import labels
from journeyman.core.api.objects import NodeClaim
from journeyman.errors import CloudProviderError, InvalidObjectError
from journeyman.ports import JSON, Clock

ANNOTATION: Final = f"{labels.AWS_GROUP}/instance-profile-name"
"""On a NodeClaim: the profile of its instance."""
_TTL: Final = timedelta(minutes=15)  # cache.go `InstanceProfileTTL`
_KEPT_FOR: Final = timedelta(hours=1)  # upstream protects a new profile for as long
_NOT_FOUND: Final = "NoSuchEntity"
_RIGHT_TO_PASS: Final = "iam:PassRole"  # noqa: S105 - an action of IAM
_ALREADY_EXISTS: Final = "EntityAlreadyExists"
_ROLE_LIMIT: Final = "LimitExceeded"  # a profile holds one role


class UnusableRoleError(Exception):
    """The role of the NodeClass does not exist, or may not be passed to EC2; `NodeClassReconciler` reports it as a condition.

    `reason` is the condition's.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class InstanceProfileProvider:
    """Creates and deletes the instance profiles of one cluster."""

    def __init__(self, clients: Clients, settings: AwsSettings, clock: Clock) -> None:
        self._clients = clients
        self._settings = settings
        self._ready: TTLCache[Any, str] = ttl_cache(clock, _TTL)
        self._lock = Lock()

    def ensure(self, node_class: NodeClassView) -> str:
        """Return the name of the NodeClass's profile after ensuring that it exists and holds the role.

        Raises:
            UnusableRoleError: The role does not exist, or the functions may not pass it to EC2.
            CloudProviderError: IAM did not respond, or rejected the call.
        """
        if node_class.spec.role is None:
            return node_class.spec.instance_profile or ""
        role = role_name(node_class.spec.role)
        name = profile_name(self._settings, node_class, role)
        if node_class.status.instance_profile != name:
            # the NodeClass has used another one meanwhile, so `delete_unused` may have deleted this one
            with self._lock:
                self._ready.pop(hashkey(name), None)
        return self._ensure_role(name, role, node_class)

    def release(self, uid: str) -> None:
        """Delete the profiles that `ensure` created for the NodeClass with this UID, one per role it has had.

        A user's profile stays.

        Raises:
            CloudProviderError: IAM did not respond, or rejected a call.
        """
        path = _path(self._settings, uid)
        for profile in self._listed(path):
            if profile["Path"] == path:  # IAM's prefix also matches other NodeClasses
                self._delete(profile)

    def delete_unused(
        self, node_classes: Iterable[JSON], claims: Iterable[NodeClaim], now: datetime
    ) -> tuple[str, ...]:
        """Delete the cluster's profiles that neither a NodeClass nor a NodeClaim uses; return their names.

        Args:
            node_classes: All EC2NodeClasses of the cluster. One that does not validate may use any of its profiles.
            claims: All NodeClaims of the cluster. While one is not launched, nothing is deleted: its launch may use any
                profile. One that does not name its profile may use any of its NodeClass.
            now: The time. A profile of the last hour stays, because a run may be about to use it.

        Raises:
            CloudProviderError: IAM did not respond, or rejected a call.
        """
        listed_claims, used, protected_paths = tuple(claims), set[str | None](), set[str]()
        if self._settings.isolated_vpc or any(not claim.status.provider_id for claim in listed_claims):
            return ()
        unnamed = {c.spec.node_class_ref.name for c in listed_claims if not c.metadata.annotations.get(ANNOTATION)}
        for raw in node_classes:
            metadata = metadata_of(raw)
            path = _path(self._settings, metadata.uid)
            try:
                node_class = ec2_node_class(raw)
            except InvalidObjectError:
                protected_paths.add(path)
                continue
            role = role_name(node_class.spec.role or "")
            used |= {node_class.status.instance_profile, profile_name(self._settings, node_class, role)}
            if node_class.name in unnamed:
                protected_paths.add(path)
        used |= {claim.metadata.annotations.get(ANNOTATION) for claim in listed_claims}
        deleted = []
        for profile in self._listed(_cluster_path(self._settings)):
            name = profile["InstanceProfileName"]
            if name not in used and profile["Path"] not in protected_paths and now - profile["CreateDate"] >= _KEPT_FOR:
                self._delete(profile)
                deleted.append(name)
        return tuple(deleted)

    def _listed(self, path: str) -> list[Mapping[str, Any]]:
        pages = self._clients.iam.get_paginator("list_instance_profiles")
        with translated("iam:ListInstanceProfiles"):
            return [p for page in pages.paginate(PathPrefix=path) for p in page["InstanceProfiles"]]

    def _delete(self, profile: Mapping[str, Any]) -> None:
        iam, name = self._clients.iam, profile["InstanceProfileName"]
        for role in profile["Roles"]:
            with _ignoring_not_found("iam:RemoveRoleFromInstanceProfile", name):
                iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role["RoleName"])
        with _ignoring_not_found("iam:DeleteInstanceProfile", name):
            iam.delete_instance_profile(InstanceProfileName=name)
        with self._lock:
            self._ready.pop(hashkey(name), None)

    @cachedmethod(attrgetter("_ready"), key=lambda _, name, *_others: hashkey(name), lock=attrgetter("_lock"))
    def _ensure_role(self, name: str, role: str, node_class: NodeClassView) -> str:
        current = self._roles(name)
        if current is None:
            self._create(name, node_class)
            current = []
        if role not in current:
            self._add_role(name, role)
        return name

    def _roles(self, name: str) -> list[str] | None:
        """Return the roles in a profile; None if there is no such profile."""
        try:
            with translated("iam:GetInstanceProfile", instance_profile=name):
                profile = self._clients.iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        except CloudProviderError as error:
            if error_code(error) == _NOT_FOUND:
                return None
            raise
        return [role["RoleName"] for role in profile["Roles"]]

    def _create(self, name: str, node_class: NodeClassView) -> None:
        settings = self._settings
        try:
            with translated("iam:CreateInstanceProfile", instance_profile=name):
                self._clients.iam.create_instance_profile(
                    InstanceProfileName=name,
                    Path=_path(settings, node_class.uid),
                    Tags=_tags(settings, node_class),
                )
        except CloudProviderError as error:
            if error_code(error) != _ALREADY_EXISTS:
                raise

    def _add_role(self, name: str, role: str) -> None:
        try:
            with translated("iam:AddRoleToInstanceProfile", instance_profile=name, role=role):
                self._clients.iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)
        except CloudProviderError as error:
            if error_code(error) == _NOT_FOUND:
                raise UnusableRoleError("RoleNotFound", f"role {role} does not exist") from error
            if _RIGHT_TO_PASS in error.message:
                raise UnusableRoleError("RoleNotAllowed", _not_allowed(role, error)) from error
            if error_code(error) != _ROLE_LIMIT:  # a concurrent run added the role, which the name identifies
                raise


def _not_allowed(role: str, error: CloudProviderError) -> str:
    """Return what a user does if IAM needs a right on the role itself, which AddRoleToInstanceProfile's is not."""
    said = str(error.__cause__ or error.message)
    return (
        f"the functions may not pass role {role} to EC2: add its ARN to the parameter NodeRoleArn of the deployed stack, "
        f"which grants {_RIGHT_TO_PASS} on it, or name a role that the parameter has ({said})"
    )


@contextmanager
def _ignoring_not_found(operation: str, name: str) -> Iterator[None]:
    """Run one IAM deletion, and ignore the error that the object does not exist. Raises CloudProviderError otherwise."""
    try:
        with translated(operation, instance_profile=name):
            yield
    except CloudProviderError as error:
        if error_code(error) != _NOT_FOUND:
            raise


def profile_name(settings: AwsSettings, node_class: NodeClassView, role: str) -> str:
    """Return `<cluster>_<digest>`. The role is part of the digest, since running instances keep their profile."""
    identity = "\n".join((settings.region, node_class.name, node_class.uid, role))
    return f"{settings.cluster_name}_{hashlib.sha256(identity.encode()).hexdigest()[:20]}"


def role_name(role: str) -> str:
    """Return the name of a role that may have a path, which AddRoleToInstanceProfile does not take."""
    return role.rpartition("/")[2]


def _path(settings: AwsSettings, uid: str) -> str:
    """Return the IAM path of a NodeClass's profiles, which is the path that Karpenter uses."""
    return f"{_cluster_path(settings)}{uid}/"


def _cluster_path(settings: AwsSettings) -> str:
    return f"/karpenter/{settings.region}/{settings.cluster_name}/"


def _tags(settings: AwsSettings, node_class: NodeClassView) -> list[dict[str, Any]]:
    return tags.to_aws(
        {
            **node_class.spec.tags,
            f"kubernetes.io/cluster/{settings.cluster_name}": "owned",
            tags.CLUSTER: settings.cluster_name,
            tags.NODE_CLASS: node_class.name,
            labels.REGION: settings.region,
        }
    )
