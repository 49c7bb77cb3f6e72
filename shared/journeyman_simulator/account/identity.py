"""The simulated account's IAM: roles, and instance profiles that hold one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from journeyman_simulator.account.asking import Ask, Operation, Operations
from journeyman_simulator.aws.refusal import RefusedError
from journeyman_simulator.aws.timekeeper import Timekeeper


class Profile(Struct, kw_only=True, eq=False):
    """An instance profile, and since when it is what it is."""

    name: str
    path: str
    tags: tuple[Mapping[str, str], ...]
    created: datetime
    role: str = ""
    role_since: datetime | None = None


class Identity:
    """Roles and profiles by name."""

    def __init__(self, time: Timekeeper, account: str) -> None:
        self._time = time
        self._account = account
        self.roles: set[str] = set()
        self.profiles: dict[str, Profile] = {}

    def arn_of_profile(self, name: str) -> str:
        """Its ARN. Raises RefusedError, in RunInstances' words, if there is no such profile."""
        if name not in self.profiles:
            message = (
                f"Value ({name}) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
            )
            raise RefusedError("InvalidParameterValue", message)
        return self._arn(self.profiles[name])

    def operations(self) -> Operations:
        """What IAM answers."""
        name = "InstanceProfileName"
        return {
            "CreateRole": Operation(self._create_role, requires=("RoleName", "AssumeRolePolicyDocument")),
            "GetInstanceProfile": Operation(self._get_profile, requires=(name,)),
            "CreateInstanceProfile": Operation(self._create_profile, requires=(name,), accepts=("Path", "Tags")),
            "AddRoleToInstanceProfile": Operation(self._add_role, requires=(name, "RoleName")),
            "ListInstanceProfiles": Operation(self._list_profiles, accepts=("PathPrefix", "Marker", "MaxItems")),
            "RemoveRoleFromInstanceProfile": Operation(self._remove_role, requires=(name, "RoleName")),
            "DeleteInstanceProfile": Operation(self._delete_profile, requires=(name,)),
        }

    def _create_role(self, ask: Ask) -> dict[str, Any]:
        name = ask["RoleName"]
        if name in self.roles:
            raise RefusedError("EntityAlreadyExists", f"Role with name {name} already exists.")
        self.roles.add(name)
        return {"Role": self._described_role(name)}

    def _get_profile(self, ask: Ask) -> dict[str, Any]:
        profile = self.profiles.get(ask["InstanceProfileName"])
        if profile is None or profile.created > ask.as_of:
            raise _no_such_profile(ask)
        return {"InstanceProfile": self._described(profile, ask.as_of)}

    def _create_profile(self, ask: Ask) -> dict[str, Any]:
        name = ask["InstanceProfileName"]
        if name in self.profiles:
            raise RefusedError("EntityAlreadyExists", f"Instance Profile {name} already exists.")
        now = self._time.now()
        profile = Profile(name=name, path=ask.get("Path", "/"), tags=tuple(ask.get("Tags", ())), created=now)
        self.profiles[name] = profile
        return {"InstanceProfile": self._described(profile, now)}

    def _add_role(self, ask: Ask) -> dict[str, Any]:
        profile, role = self.profiles.get(ask["InstanceProfileName"]), ask["RoleName"]
        if role not in self.roles:
            raise RefusedError("NoSuchEntity", f"The role with name {role} cannot be found.")
        if profile is None:
            raise _no_such_profile(ask)
        if profile.role:
            raise RefusedError("LimitExceeded", "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1")
        profile.role, profile.role_since = role, self._time.now()
        return {}

    def _list_profiles(self, ask: Ask) -> dict[str, Any]:
        prefix = ask.get("PathPrefix", "/")
        found = [p for _, p in sorted(self.profiles.items()) if p.path.startswith(prefix) and p.created <= ask.as_of]
        return {
            "InstanceProfiles": [self._described(profile, ask.as_of) for profile in found],
            "IsTruncated": False,
        }

    def _remove_role(self, ask: Ask) -> dict[str, Any]:
        profile = self.profiles.get(ask["InstanceProfileName"])
        if profile is None:
            raise _no_such_profile(ask)
        if profile.role != ask["RoleName"]:
            raise RefusedError("NoSuchEntity", f"The role with name {ask['RoleName']} cannot be found.")
        profile.role, profile.role_since = "", None
        return {}

    def _delete_profile(self, ask: Ask) -> dict[str, Any]:
        profile = self.profiles.get(ask["InstanceProfileName"])
        if profile is None:
            raise _no_such_profile(ask)
        if profile.role:
            raise RefusedError("DeleteConflict", "Cannot delete entity, must remove roles from instance profile first.")
        del self.profiles[profile.name]
        return {}

    def _described(self, profile: Profile, as_of: datetime) -> dict[str, Any]:
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

    def _arn(self, profile: Profile) -> str:
        return f"arn:aws:iam::{self._account}:instance-profile{profile.path}{profile.name}"


def _no_such_profile(ask: Ask) -> RefusedError:
    return RefusedError("NoSuchEntity", f"Instance Profile {ask['InstanceProfileName']} cannot be found.")
