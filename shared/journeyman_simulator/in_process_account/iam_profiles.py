"""Implements the in-process account's IAM: roles, and instance profiles with one role."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from journeyman_simulator.cloud_rules.service_errors import ServiceError, no_such_instance_profile
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.in_process_account.service_client import ServiceOperation, ServiceOperations, ServiceRequest


class InstanceProfile(Struct, kw_only=True, eq=False):
    """An instance profile, with the times of its changes."""

    name: str
    path: str
    tags: tuple[Mapping[str, str], ...]
    created: datetime
    role: str = ""
    role_since: datetime | None = None


class SimulatedIam:
    """Roles and instance profiles by name; callers lack iam:PassRole on the roles in `not_passable`."""

    def __init__(self, time: ServiceTime, account: str) -> None:
        self._time = time
        self._account = account
        self.roles: set[str] = set()
        self.not_passable: set[str] = set()
        self.profiles: dict[str, InstanceProfile] = {}

    def arn_of_profile(self, name: str) -> str:
        """Return a profile's ARN. Raises the ServiceError of RunInstances if the profile does not exist."""
        if name not in self.profiles:
            raise no_such_instance_profile("name", name)
        return self._arn(self.profiles[name])

    def operations(self) -> ServiceOperations:
        """Return IAM's operations."""
        name = "InstanceProfileName"
        return {
            "CreateRole": ServiceOperation(self._create_role, requires=("RoleName", "AssumeRolePolicyDocument")),
            "GetInstanceProfile": ServiceOperation(self._get_profile, requires=(name,)),
            "CreateInstanceProfile": ServiceOperation(self._create_profile, requires=(name,), accepts=("Path", "Tags")),
            "AddRoleToInstanceProfile": ServiceOperation(self._add_role, requires=(name, "RoleName")),
            "ListInstanceProfiles": ServiceOperation(self._list_profiles, accepts=("PathPrefix", "Marker", "MaxItems")),
            "RemoveRoleFromInstanceProfile": ServiceOperation(self._remove_role, requires=(name, "RoleName")),
            "DeleteInstanceProfile": ServiceOperation(self._delete_profile, requires=(name,)),
        }

    def _create_role(self, request: ServiceRequest) -> dict[str, Any]:
        name = request["RoleName"]
        if name in self.roles:
            raise ServiceError("EntityAlreadyExists", f"Role with name {name} already exists.")
        self.roles.add(name)
        return {"Role": self._described_role(name)}

    def _get_profile(self, request: ServiceRequest) -> dict[str, Any]:
        profile = self.profiles.get(request["InstanceProfileName"])
        if profile is None or profile.created > request.as_of:
            raise _no_such_profile(request)
        return {"InstanceProfile": self._described(profile, request.as_of)}

    def _create_profile(self, request: ServiceRequest) -> dict[str, Any]:
        name = request["InstanceProfileName"]
        if name in self.profiles:
            raise ServiceError("EntityAlreadyExists", f"Instance Profile {name} already exists.")
        now = self._time.now()
        profile = InstanceProfile(
            name=name, path=request.get("Path", "/"), tags=tuple(request.get("Tags", ())), created=now
        )
        self.profiles[name] = profile
        return {"InstanceProfile": self._described(profile, now)}

    def _add_role(self, request: ServiceRequest) -> dict[str, Any]:
        profile, role = self.profiles.get(request["InstanceProfileName"]), request["RoleName"]
        if role not in self.roles:
            raise ServiceError("NoSuchEntity", f"The role with name {role} cannot be found.")
        if profile is None:
            raise _no_such_profile(request)
        if role in self.not_passable:
            arn = f"arn:aws:iam::{self._account}:role/{role}"
            text = (
                f"is not authorized to perform: iam:PassRole on resource: {arn} because no identity-based policy allows"
            )
            raise ServiceError(
                "AccessDenied", f"User: arn:aws:sts::{self._account}:assumed-role/f {text} the iam:PassRole action"
            )
        if profile.role:
            raise ServiceError("LimitExceeded", "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1")
        profile.role, profile.role_since = role, self._time.now()
        return {}

    def _list_profiles(self, request: ServiceRequest) -> dict[str, Any]:
        prefix = request.get("PathPrefix", "/")
        found = [
            p for _, p in sorted(self.profiles.items()) if p.path.startswith(prefix) and p.created <= request.as_of
        ]
        return {
            "InstanceProfiles": [self._described(profile, request.as_of) for profile in found],
            "IsTruncated": False,
        }

    def _remove_role(self, request: ServiceRequest) -> dict[str, Any]:
        profile = self.profiles.get(request["InstanceProfileName"])
        if profile is None:
            raise _no_such_profile(request)
        if profile.role != request["RoleName"]:
            raise ServiceError("NoSuchEntity", f"The role with name {request['RoleName']} cannot be found.")
        profile.role, profile.role_since = "", None
        return {}

    def _delete_profile(self, request: ServiceRequest) -> dict[str, Any]:
        profile = self.profiles.get(request["InstanceProfileName"])
        if profile is None:
            raise _no_such_profile(request)
        if profile.role:
            raise ServiceError("DeleteConflict", "Cannot delete entity, must remove roles from instance profile first.")
        del self.profiles[profile.name]
        return {}

    def _described(self, profile: InstanceProfile, as_of: datetime) -> dict[str, Any]:
        holds_role = profile.role_since is not None and profile.role_since <= as_of
        return {
            "InstanceProfileName": profile.name,
            "Path": profile.path,
            "Arn": self._arn(profile),
            "CreateDate": profile.created,
            "Roles": [self._described_role(profile.role)] if holds_role else [],
            "Tags": [dict(tag) for tag in profile.tags],
        }

    def _described_role(self, name: str) -> dict[str, Any]:
        return {"RoleName": name, "Path": "/", "Arn": f"arn:aws:iam::{self._account}:role/{name}"}

    def _arn(self, profile: InstanceProfile) -> str:
        return f"arn:aws:iam::{self._account}:instance-profile{profile.path}{profile.name}"


def _no_such_profile(request: ServiceRequest) -> ServiceError:
    return ServiceError("NoSuchEntity", f"Instance Profile {request['InstanceProfileName']} cannot be found.")
