"""Creates the agencies, functions and triggers of infra/huawei in a simulated account.

The demo and end-to-end tests run on the deployed description, and so test it. Each function has the agency of the description, so
that the account denies what its policies do not allow. Triggers of API Gateway, the package and logs have no effect in a simulation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from journeyman.errors import ConfigurationError
from journeyman.ports import Clock
from journeyman_simulator.cloud_rules.repeated_invocations import AsyncInvokeConfig
from journeyman_simulator.deployment_files import deployment_file
from journeyman_simulator.huawei_account.function_graph import (
    CtsTrigger,
    FgsHandler,
    FgsTimers,
    FunctionGraph,
    fgs_function,
    stored_letters,
)
from journeyman_simulator.huawei_account.huawei_account import HuaweiAccount
from journeyman_simulator.huawei_account.terraform import Block, TerraformModule, read_module
from journeyman_simulator.lambda_functions import LambdaFunction
from journeyman_simulator.world import Actor

Initializer = Callable[[Any], object]
DELAY: Final = "delay"
"""The function that waits with messages."""
_FUNCTION: Final = "huaweicloud_fgs_function"
_TRIGGER: Final = "huaweicloud_fgs_function_trigger"
_ASYNC: Final = "huaweicloud_fgs_async_invoke_configuration"
_ROLE: Final = "huaweicloud_identity_role"
_AGENCY: Final = "huaweicloud_identity_agency"
_GATEWAY: Final = "DEDICATEDGATEWAY"
_ON_FAILURE: Final = "OBS"


def read_description(folder: Path | None = None) -> tuple[Block, ...]:
    """Return the description in a folder; by default infra/huawei."""
    return read_module(folder or deployment_file("infra", "huawei"))


class FgsStack:
    """The resources of a description in an account.

    Args:
        account: The account.
        description: The result of `read_description`.
        variables: The values of the module's variables, as in TF_VAR_…; by default `region` is the account's.
    """

    def __init__(self, account: HuaweiAccount, description: Sequence[Block], variables: Mapping[str, str]) -> None:
        self._account = account
        self.module = TerraformModule(
            description, {"region": account.region, **variables}, self._computed, lambda _path: b""
        )
        self.functions: dict[str, LambdaFunction] = {}
        self.graph: FunctionGraph
        self.timers: FgsTimers

    @cached_property
    def properties(self) -> dict[str, Mapping[str, Any]]:
        """Return the attributes of the functions by their names in the description: those of the steps, `api`, `events`, `delay`."""
        return {_key(address): values for address, values in self.module.resources(_FUNCTION).items()}

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables that all functions have."""
        of_each = [self.environment_of(name) for name in self.properties]
        return {name: value for name, value in of_each[0].items() if all(each.get(name) == value for each in of_each)}

    @property
    def actors(self) -> tuple[Actor, ...]:
        """Return the actors of a simulated `World`, after `create_resources`."""
        return (self.timers, self.graph)

    def environment_of(self, function: str) -> dict[str, str]:
        """Return the environment variables of a function."""
        found: dict[str, str] = json.loads(self.properties[function]["user_data"])
        return found

    def urn_of(self, function: str) -> str:
        """Return the URN of a function, which is given by its name in the description."""
        properties = self.properties[function]
        return str(self._computed(_FUNCTION, properties, "urn")).removesuffix(":latest")

    def policies_of(self, function: str) -> dict[str, Mapping[str, Any]]:
        """Return the policy documents of a function's agency by the policies' names."""
        documents = {role["name"]: json.loads(role["policy"]) for role in self._roles.values()}
        (agency,) = (each for each in self._agencies.values() if each["name"] == self.properties[function]["agency"])
        in_project = [name for project in agency["project_role"] for name in project["roles"]]
        return {name: documents[name] for name in (*in_project, *agency["domain_roles"])}

    def invoke_async(self, function: str, body: Mapping[str, Any]) -> str:
        """Invoke a function asynchronously, as a forwarder does; return the id of the request."""
        return self.graph.invoke(self.urn_of(function), body)

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return what FunctionGraph stored of messages that had no success, oldest first."""
        destinations = {_async_config(config).on_failure for config in self.module.resources(_ASYNC).values()}
        return stored_letters(self.graph.objects, tuple(f"{each}/" for each in sorted(destinations) if each))

    def create_resources(
        self,
        load_handler: Callable[[str], FgsHandler],
        clock: Clock,
        load_initializer: Callable[[str], Initializer] | None = None,
        *,
        checks_permissions: bool = True,
        **more: Any,
    ) -> None:
        """Create all resources, and let the account invoke the functions.

        Args:
            load_handler: Returns the function that the attribute `handler` names, such as `provision.handler`.
            clock: The clock that dates the functions' invocations, and fires timers.
            load_initializer: Returns the function that `initializer_handler` names; by default none runs.
            checks_permissions: Whether the functions have only the rights of their agencies. Requests are a function's if their
                caller has the function's full name.
            more: Further fields of each `LambdaFunction`, such as `fatal`.
        """
        self.graph = FunctionGraph(clock)
        self.timers = FgsTimers(self.graph, clock)
        for name, properties in self.properties.items():
            self.functions[name] = self._create_function(name, load_handler, load_initializer, clock, more)
            if checks_permissions:
                self._account.permissions.attach(properties["name"], self.policies_of(name))
        by_urn = {self._computed(_FUNCTION, self.properties[name], "urn"): f for name, f in self.functions.items()}
        for config in self.module.resources(_ASYNC).values():
            self.graph.configure(by_urn[config["function_urn"]], _async_config(config))
        for trigger in self.module.resources(_TRIGGER).values():
            self._create_trigger(by_urn[trigger["function_urn"]], trigger)
        self._account.async_invocations = self.graph.invoke
        self._account.events.subscribers.append(self.graph.deliver_trace)

    @cached_property
    def _roles(self) -> dict[str, dict[str, Any]]:
        return self.module.resources(_ROLE)

    @cached_property
    def _agencies(self) -> dict[str, dict[str, Any]]:
        return self.module.resources(_AGENCY)

    def _create_function(
        self,
        name: str,
        load_handler: Callable[[str], FgsHandler],
        load_initializer: Callable[[str], Initializer] | None,
        clock: Clock,
        more: Mapping[str, Any],
    ) -> LambdaFunction:
        properties = self.properties[name]
        function = fgs_function(
            properties["name"],
            load_handler(properties["handler"]),
            clock,
            initializer=load_initializer(properties["initializer_handler"]) if load_initializer else None,
            key=self._account.add_access_key(properties["name"], temporary=True),
            user_data=self.environment_of(name),
            region=self._account.region,
            project_id=self._account.project_id,
            memory_mb=properties["memory_size"],
            timeout_seconds=properties["timeout"],
            **more,
        )
        self.graph.add(function, most_instances=int(properties["max_instance_num"]), waits=name == DELAY)
        return function

    def _create_trigger(self, function: LambdaFunction, trigger: Mapping[str, Any]) -> None:
        kind, data = trigger["type"], json.loads(trigger["event_data"])
        if trigger["status"] == "DISABLED" or kind == _GATEWAY:
            return
        if kind == "TIMER":
            self.timers.add(data["name"], function, data["schedule"], data.get("user_event", ""))
        elif kind == "CTS":
            self.graph.cts_triggers.append(
                CtsTrigger(name=data["name"], function=function, operations=frozenset(data["operations"]))
            )
        else:
            raise ConfigurationError(f"the simulation has no trigger of type {kind}", to_do="add it to FgsStack")

    def _computed(self, kind: str, values: Mapping[str, Any], attribute: str) -> Any:
        """Return an attribute that the cloud computes (`terraform.Computed`)."""
        account = self._account
        known: Mapping[tuple[str, str], Callable[[], Any]] = {
            ("huaweicloud_account", "id"): lambda: account.domain_id,
            ("huaweicloud_identity_projects", "projects"): lambda: [{"id": account.project_id, "name": values["name"]}],
            ("huaweicloud_obs_bucket", "bucket_domain_name"): lambda: (
                f"{values['bucket']}.obs.{account.region}.myhuaweicloud.com"
            ),
            ("huaweicloud_fgs_dependency_version", "version_id"): lambda: f"version-of-{values['name']}",
            ("huaweicloud_apig_group", "id"): lambda: f"group-of-{values['instance_id']}",
            (_FUNCTION, "urn"): lambda: (
                f"urn:fss:{account.region}:{account.project_id}:function:{values['app']}:{values['name']}:latest"
            ),
        }
        return known[kind, attribute]()


def _key(address: str) -> str:
    """Return the key of an instance from its address: `function.sweep` is `sweep`."""
    return address.partition(".")[2]


def _async_config(config: Mapping[str, Any]) -> AsyncInvokeConfig:
    on_failure = ""
    for destination in config.get("on_failure", ()):
        if destination["destination"] != _ON_FAILURE:
            raise ConfigurationError(
                f"the simulation has no failure destination {destination['destination']}", to_do="add it to FgsStack"
            )
        place = json.loads(destination["param"])
        on_failure = f"{place['bucket']}/{place['prefix'].strip('/')}"
    return AsyncInvokeConfig(
        retries=config["max_async_retry_attempts"],
        longest_age=timedelta(seconds=config["max_async_event_age_in_seconds"]),
        on_failure=on_failure,
    )
