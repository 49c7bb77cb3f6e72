"""Denies the calls of a deployed function that its RAM role does not allow, and records which rights it uses."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from journeyman.cloud.alibaba.smq_queue import SmqError, SmqMessage
from journeyman_simulator.alibaba_account.ecs_instance_states import SimulatedEcsInstances
from journeyman_simulator.alibaba_account.smq import InProcessSmq, SimulatedSmq
from journeyman_simulator.cloud_rules.policy_statements import (
    GrantedRight,
    NeededRight,
    PolicyStatement,
    allowing_statement,
    right_of,
)
from journeyman_simulator.cloud_rules.ram_policies import needed_rights


class RamPermissions:
    """The roles of the functions of one account, and what was used and denied of them.

    `LambdaFunction` names the function that runs in an environment variable, also those of Function Compute. Calls outside of an
    invocation of a function with a role are not checked.

    Args:
        region: The account's region.
        account: The account's id.
        instances: The account's instances, whose tags conditions compare.
    """

    def __init__(self, region: str, account: str, instances: SimulatedEcsInstances) -> None:
        self.region = region
        self.account = account
        self._instances = instances
        self._roles: dict[str, Sequence[PolicyStatement]] = {}
        self.used: dict[str, set[GrantedRight]] = {}
        self.denied: list[str] = []

    def give_role(self, function: str, statements: Sequence[PolicyStatement]) -> None:
        """Let a function, given by its name, make only the calls that the statements allow."""
        self._roles[function] = tuple(statements)

    def tags_of(self, instance_id: str) -> Mapping[str, str] | None:
        """Return the tags of an instance (`RamLookup`)."""
        found = self._instances.known.get(instance_id)
        return None if found is None else found.tags

    def refused(self, action: str, parameters: Mapping[str, Any]) -> NeededRight | None:
        """Return a right that the running function lacks for a call; None if it may make the call."""
        function = os.environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
        if function not in self._roles:
            return None
        for right in needed_rights(action, parameters, self):
            statement = allowing_statement(self._roles[function], right)
            if statement is None:
                self.denied.append(f"{function}: {right}")
                return right
            self.used.setdefault(function, set()).add(right_of(statement, right))
        return None

    def may_call(self, _caller: str, action: str, queue: str) -> bool:
        """Whether the running function may do an action on a queue; `SmqHttpServer.authorize`."""
        return self.refused(action, {"QueueName": queue}) is None


class CheckedSmq(InProcessSmq):
    """`Smq` in process, which refuses the messages that the running function's role does not allow."""

    def __init__(self, smq: SimulatedSmq, permissions: RamPermissions) -> None:
        super().__init__(smq)
        self._permissions = permissions

    def send(self, queue: str, messages: Sequence[SmqMessage]) -> None:
        """Send messages in one request. Raises SmqError."""
        if not self._permissions.may_call("", "mns:SendMessage", queue):
            raise SmqError("AccessDenied", "The OwnerId that your Access Key Id associated to is forbidden.")
        super().send(queue, messages)
