"""Denies the calls of a deployed function that its role does not allow, and records which rights it uses.

moto can evaluate policies, but neither condition keys nor the rights that one call needs on several resources.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from botocore.exceptions import ClientError
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from journeyman_simulator.cloud_rules.iam_policies import TaggedResource, TaggedTemplate, needed_rights
from journeyman_simulator.cloud_rules.policy_statements import (
    GrantedRight,
    PolicyStatement,
    allowing_statement,
    right_of,
)

_DENIALS: Mapping[str, str] = {"ec2": "UnauthorizedOperation", "iam": "AccessDenied", "sqs": "AccessDenied"}


class FunctionPermissions:
    """The roles of the functions of one account, and what was used and denied of them.

    Args:
        region: The account's region.
        account: The account's id.
    """

    def __init__(self, region: str, account: str) -> None:
        self._resources = _MotoResources(region, account)
        self._roles: dict[str, Sequence[PolicyStatement]] = {}
        self.used: dict[str, set[GrantedRight]] = {}
        self.denied: list[str] = []

    def give_role(self, function: str, statements: Sequence[PolicyStatement]) -> None:
        """Let a function make only the calls that the statements allow."""
        self._roles[function] = tuple(statements)

    def watch(self, client: Any) -> None:
        """Check the client's calls from now on. Calls outside of an invocation of a function with a role are not checked."""
        client.meta.events.register("provide-client-params", self._check)

    def _check(self, params: Mapping[str, Any], model: Any, **_: Any) -> None:
        function = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
        if function not in self._roles:
            return
        service, operation = str(model.service_model.service_name), str(model.name)
        for right in needed_rights(service, operation, params, self._resources):
            statement = allowing_statement(self._roles[function], right)
            if statement is None:
                self.denied.append(f"{function}: {right}")
                raise _denial(service, operation, f"{function} is not authorized to perform {right}")
            self.used.setdefault(function, set()).add(right_of(statement, right))


def _denial(service: str, operation: str, message: str) -> ClientError:
    code = _DENIALS.get(service, "AccessDeniedException")
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    return ClientError(cast("Any", response), operation)


class _MotoResources:
    """Finds resources in moto's models, without a request that tests would count."""

    def __init__(self, region: str, account: str) -> None:
        self.region = region
        self.account = account

    def instance(self, instance_id: str) -> TaggedResource | None:
        found = next((i for i in self._ec2.all_instances() if i.id == instance_id), None)
        if found is None:
            return None
        return TaggedResource(arn=self._arn("instance", found.id), tags=_tags(found.get_tags()))

    def launch_template(self, name: str) -> TaggedTemplate | None:
        found = self._ec2.launch_templates.get(self._ec2.launch_template_name_to_ids.get(name, ""))
        if found is None:
            return None
        data = found.latest_version().data
        profile = self._profile(str((data.get("IamInstanceProfile") or {}).get("Name", "")))
        return TaggedTemplate(
            resource=TaggedResource(arn=self._arn("launch-template", found.id), tags=_tags(found.get_tags())),
            data=data,
            passed_role=str(profile.roles[0].arn) if profile is not None and profile.roles else "",
        )

    def instance_profile(self, name: str) -> TaggedResource | None:
        found = self._profile(name)
        return (
            None
            if found is None
            else TaggedResource(arn=str(found.arn), tags={t["Key"]: t["Value"] for t in found.tags})
        )

    def role_arn(self, name: str) -> str:
        found = next((role for role in self._iam.roles.values() if role.name == name), None)
        return str(found.arn) if found is not None else f"arn:aws:iam::{self.account}:role/{name}"

    def _profile(self, name: str) -> Any:
        return next((p for p in self._iam.instance_profiles.values() if p.name == name), None)

    def _arn(self, kind: str, id_: str) -> str:
        return f"arn:aws:ec2:{self.region}:{self.account}:{kind}/{id_}"

    @property
    def _ec2(self) -> Any:
        return ec2_backends[self.account][self.region]

    @property
    def _iam(self) -> Any:
        return iam_backends[self.account]["aws"]


def _tags(found: Any) -> dict[str, str]:
    return {str(tag["key"]): str(tag["value"]) for tag in found}
