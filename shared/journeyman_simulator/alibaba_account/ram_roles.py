"""Implements RAM's roles: who may assume each, and GetRole."""

from __future__ import annotations

import json
from typing import Any, Final

from journeyman_simulator.alibaba_account.openapi_requests import ActionHandlers, ActionRequest
from journeyman_simulator.cloud_rules.service_errors import ServiceError

_ECS: Final = "ecs.aliyuncs.com"


class RamRoles:
    """The account's roles, with the service that each trusts."""

    def __init__(self, account: str) -> None:
        self._account = account
        self.trusted_services: dict[str, str] = {}  # by role

    def add(self, name: str, trusted_service: str = _ECS) -> None:
        """Create a role, or change the service that it trusts."""
        self.trusted_services[name] = trusted_service

    def remove(self, name: str) -> None:
        """Delete a role."""
        del self.trusted_services[name]

    def require_for_ecs(self, name: str) -> None:
        """Raise ServiceError if an instance cannot have a role."""
        if name not in self.trusted_services:
            raise ServiceError("InvalidRamRole.NotFound", f"The specified RamRoleName {name} does not exist.")
        if self.trusted_services[name] != _ECS:
            raise ServiceError("InvalidRamRole.NotEcsRole", f"The specified RamRoleName {name} does not trust ECS.")

    def handlers(self) -> ActionHandlers:
        """Return the handler of RAM's action."""
        return {"GetRole": self._get}

    def _get(self, request: ActionRequest) -> dict[str, Any]:
        name = request["RoleName"]
        if name not in self.trusted_services:
            raise ServiceError("EntityNotExist.Role", f"The role not exists: {name} .")
        statement = {
            "Action": "sts:AssumeRole",
            "Effect": "Allow",
            "Principal": {"Service": [self.trusted_services[name]]},
        }
        return {
            "Role": {
                "RoleName": name,
                "RoleId": f"3{sum(name.encode()):017d}",
                "Arn": f"acs:ram::{self._account}:role/{name.lower()}",
                "AssumeRolePolicyDocument": json.dumps({"Statement": [statement], "Version": "1"}),
                "Description": "",
                "MaxSessionDuration": 3600,
            }
        }
