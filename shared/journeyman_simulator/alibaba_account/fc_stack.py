"""Creates the queues, roles, functions and triggers of infra/alibaba (s.yaml and resources.yaml) in a simulated account.

The demo and end-to-end tests run on the deployed description, and so test it. Each function has the role of the description, so
that the account denies what its policies do not allow. Triggers of type `http` and logs have no effect in a simulation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from journeyman.errors import ConfigurationError
from journeyman.ports import Clock
from journeyman_simulator.alibaba_account.alibaba_account import AlibabaAccount
from journeyman_simulator.alibaba_account.event_stream import (
    EventStreamMapping,
    FcHandler,
    RetryStrategy,
    fc_function,
)
from journeyman_simulator.alibaba_account.fc_triggers import (
    AsyncInvocations,
    EventRule,
    FcTimers,
)
from journeyman_simulator.alibaba_account.ram_permissions import CheckedSmq
from journeyman_simulator.alibaba_account.serverless_devs import DescriptionVariables, read_yaml
from journeyman_simulator.alibaba_account.smq import SimulatedSmq, SmqAttributes, StoredMessage
from journeyman_simulator.cloud_rules.intrinsic_functions import NO_VALUE, IntrinsicFunctions
from journeyman_simulator.cloud_rules.policy_statements import PolicyStatement, read_statements
from journeyman_simulator.cloud_rules.repeated_invocations import AsyncInvokeConfig
from journeyman_simulator.deployment_files import deployment_file
from journeyman_simulator.lambda_functions import LambdaFunction
from journeyman_simulator.world import Actor

DEAD_LETTERS: Final = "DeadLetters"  # the queue's logical id
Initializer = Callable[[Any], object]
_LAYER: Final = "acs:fc:cn-hangzhou:1:layers/journeyman/versions/1"  # no function of a simulation reads it
_QUEUE: Final = "ALIYUN::MNS::Queue"
_ROLE: Final = "ALIYUN::RAM::Role"
_POLICY: Final = "ALIYUN::RAM::ManagedPolicy"


class FcDescription(Struct, frozen=True, kw_only=True):
    """A deployment: the content of s.yaml, and of the ROS template that it names."""

    serverless: Mapping[str, Any]
    template: Mapping[str, Any]


def read_description(folder: Path | None = None) -> FcDescription:
    """Return the description in a folder; by default infra/alibaba."""
    folder = folder or deployment_file("infra", "alibaba")
    return FcDescription(
        serverless=read_yaml(folder / "s.yaml"),
        template=read_yaml(folder / "resources.yaml"),
    )


class RosStack:
    """The queues and roles of a ROS template.

    Args:
        template: The template.
        parameters: Values of parameters, which override their defaults.
        region: The stack's region.
        account: The id of its account.
    """

    def __init__(
        self, template: Mapping[str, Any], parameters: Mapping[str, str], *, region: str, account: str
    ) -> None:
        self._resources: Mapping[str, Mapping[str, Any]] = template["Resources"]
        self._outputs: Mapping[str, Mapping[str, Any]] = template["Outputs"]
        declared: Mapping[str, Mapping[str, Any]] = template["Parameters"]
        if unknown := parameters.keys() - declared.keys():
            raise ConfigurationError(
                f"the template has no parameter {', '.join(sorted(unknown))}", to_do="correct s.yaml"
            )
        self._lists = {name for name, p in declared.items() if p["Type"] == "CommaDelimitedList"}
        defaults = {name: p["Default"] for name, p in declared.items() if "Default" in p}
        self._values = {**defaults, **parameters}
        if missing := declared.keys() - self._values.keys():
            raise ConfigurationError(f"the parameter {', '.join(sorted(missing))} is not set", to_do="set it in s.yaml")
        self._pseudo = {"ALIYUN::Region": region, "ALIYUN::TenantId": account, "ALIYUN::NoValue": NO_VALUE}
        self._functions = IntrinsicFunctions(template.get("Conditions", {}), self._reference, self._attribute)

    @property
    def queues(self) -> dict[str, Mapping[str, Any]]:
        """Return the properties of the queues by logical id."""
        return {name: self._properties(name) for name in self._of_type(_QUEUE)}

    @property
    def outputs(self) -> dict[str, str]:
        """Return the stack's outputs."""
        return {name: str(self._functions.value(output["Value"])) for name, output in self._outputs.items()}

    @property
    def policies(self) -> dict[str, Mapping[str, Any]]:
        """Return the properties of the managed policies by logical id."""
        return {name: self._properties(name) for name in self._of_type(_POLICY)}

    @property
    def roles(self) -> dict[str, Mapping[str, Any]]:
        """Return the properties of the roles by ARN."""
        return {self._attribute(f"{name}.Arn"): self._properties(name) for name in self._of_type(_ROLE)}

    def statements(self, role_arn: str) -> tuple[PolicyStatement, ...]:
        """Return the statements of a role's policies."""
        by_name = {str(policy["PolicyName"]): policy["PolicyDocument"] for policy in self.policies.values()}
        attached = self.roles[role_arn]["PolicyAttachments"]["Custom"]
        return tuple(statement for name in attached for statement in read_statements(name, by_name[name]))

    def _of_type(self, kind: str) -> Iterator[str]:
        return (name for name, resource in self._resources.items() if resource["Type"] == kind)

    def _properties(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._functions.value(self._resources[name]["Properties"])
        return found

    def _reference(self, name: str) -> Any:
        if name in self._pseudo:
            return self._pseudo[name]
        value = str(self._values[name])
        return value.split(",") if name in self._lists else value

    def _attribute(self, path: str) -> str:
        name, _, attribute = path.partition(".")
        properties = self._resources[name]["Properties"]
        if attribute == "Arn":
            role = self._functions.value(properties["RoleName"])
            return f"acs:ram::{self._pseudo['ALIYUN::TenantId']}:role/{role}"
        return str(self._functions.value(properties[attribute]))


class FcStack:
    """The resources of a description in an account.

    Args:
        account: The account.
        smq: Its queues.
        description: The result of `read_description`.
        variables: The environment of the deployment: the settings that s.yaml reads with `env`.
    """

    def __init__(
        self, account: AlibabaAccount, smq: SimulatedSmq, description: FcDescription, variables: Mapping[str, str]
    ) -> None:
        self._account = account
        self._smq = smq
        self._values = DescriptionVariables(
            description.serverless,
            {"JOURNEYMAN_LAYER_ARN": _LAYER, **variables},
            {"AccountID": account.account},
            lambda _resource: self.ros.outputs,
        )
        resources: Mapping[str, Mapping[str, Any]] = description.serverless["resources"]
        stacks = [r["props"] for r in resources.values() if r["component"] == "ros"]
        (stack,) = stacks
        self.ros = RosStack(
            description.template,
            self._values.value(stack["parameters"]),
            region=account.region,
            account=account.account,
        )
        self._declared = {name: r["props"] for name, r in resources.items() if r["component"] == "fc3"}
        self.functions: dict[str, LambdaFunction] = {}
        self.mappings: tuple[EventStreamMapping, ...] = ()
        self.rules: tuple[EventRule, ...] = ()
        self.invocations: AsyncInvocations
        self.timers: FcTimers

    @property
    def properties(self) -> dict[str, Mapping[str, Any]]:
        """Return the properties of the functions by their names in s.yaml: those of the steps, `api` and `events`."""
        return {name: self._values.value(props) for name, props in self._declared.items()}

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables that all functions have."""
        of_each = [props["environmentVariables"] for props in self.properties.values()]
        return {name: value for name, value in of_each[0].items() if all(each.get(name) == value for each in of_each)}

    @property
    def actors(self) -> tuple[Actor, ...]:
        """Return the actors of a simulated `World`, after `create_resources`."""
        return (self.timers, self.invocations, *self.mappings)

    @property
    def queue_names(self) -> dict[str, str]:
        """Return the names of the queues by logical id, such as `ProvisionQueue`."""
        return {name: str(properties["QueueName"]) for name, properties in self.ros.queues.items()}

    def smq_client(self) -> CheckedSmq:
        """Return a client of the queues, which the running function's role limits."""
        return CheckedSmq(self._smq, self._account.permissions)

    def role_of(self, function: str) -> tuple[PolicyStatement, ...]:
        """Return the statements of a function's role; the function is given by its name in s.yaml."""
        return self.ros.statements(self._values.value(self._declared[function]["role"]))

    def dead_letters(self) -> list[StoredMessage]:
        """Return the messages in the dead-letter queue."""
        return list(self._smq.queue(self.queue_names[DEAD_LETTERS]).messages)

    def create_resources(
        self,
        load_handler: Callable[[str], FcHandler],
        clock: Clock,
        load_initializer: Callable[[str], Initializer] | None = None,
        *,
        checks_permissions: bool = True,
        **more: Any,
    ) -> None:
        """Create all resources.

        Args:
            load_handler: Returns the function that the property `handler` names, such as `provision.handler`.
            clock: The clock that dates the functions' invocations, and fires timers.
            load_initializer: Returns the function that the property `initializer` names; by default none runs.
            checks_permissions: Whether the functions have only the rights of their roles.
            more: Further fields of each `LambdaFunction`, such as `fatal`.
        """
        for properties in self.ros.queues.values():
            self._smq.create(str(properties["QueueName"]), _attributes(properties))
        self.invocations = AsyncInvocations(self._smq, clock)
        self.timers = FcTimers(self.invocations, clock)
        for name, props in self.properties.items():
            function = self._function(props, load_handler, load_initializer, clock, more)
            self.functions[name] = function
            self.invocations.configure(function, _async_config(props.get("asyncInvokeConfig") or {}))
            if checks_permissions:
                self._account.permissions.give_role(function.name, self.role_of(name))
            for trigger in props["triggers"]:
                self._create_trigger(function, trigger)
        if self.rules:
            self._account.bus.subscribers.append(self._deliver)

    def _function(
        self,
        props: Mapping[str, Any],
        load_handler: Callable[[str], FcHandler],
        load_initializer: Callable[[str], Initializer] | None,
        clock: Clock,
        more: Mapping[str, Any],
    ) -> LambdaFunction:
        initializer = props["instanceLifecycleConfig"]["initializer"]["handler"]
        return fc_function(
            props["functionName"],
            load_handler(props["handler"]),
            clock,
            initializer=load_initializer(initializer) if load_initializer else None,
            region=self._account.region,
            account=self._account.account,
            memory_mb=props["memorySize"],
            timeout_seconds=props["timeout"],
            **more,
        )

    def _create_trigger(self, function: LambdaFunction, trigger: Mapping[str, Any]) -> None:
        kind, config = trigger["triggerType"], trigger["triggerConfig"]
        if kind == "timer":
            if config["enable"]:
                name, payload = trigger["triggerName"], config.get("payload", "")
                self.timers.add(name, function, config["cronExpression"], payload)
        elif kind == "eventbridge":
            self._create_event_trigger(function, trigger["triggerName"], config)
        elif kind != "http":
            raise ConfigurationError(f"the simulation has no trigger of type {kind}", to_do="add it to FcStack")

    def _create_event_trigger(self, function: LambdaFunction, name: str, config: Mapping[str, Any]) -> None:
        source, options = config["eventSourceConfig"], config["runOptions"]
        if not config["triggerEnable"]:
            return
        if source["eventSourceType"] == "Default":
            pattern = json.loads(config["eventRuleFilterPattern"])
            self.rules += (EventRule(name=f"{function.name}-{name}", pattern=pattern, function=function),)
            return
        queue = source["eventSourceParameters"]["sourceMNSParameters"]
        mapping = EventStreamMapping(
            self._smq,
            queue["QueueName"],
            function,
            batch_size=options["batchWindow"]["CountBasedWindow"],
            strategy=RetryStrategy[options["retryStrategy"]["PushRetryStrategy"]],
            dead_letter_queue=_queue_of(options["deadLetterQueue"]["Arn"]),
            decodes_base64=queue["IsBase64Decode"],
        )
        self.mappings += (mapping,)

    def _deliver(self, event: dict[str, Any]) -> None:
        for rule in self.rules:
            if rule.matches(event):
                self.invocations.accept(rule.function, event)


def _attributes(properties: Mapping[str, Any]) -> SmqAttributes:
    given = {"VisibilityTimeout": "visibility_seconds", "MessageRetentionPeriod": "retention_seconds"}
    if unknown := properties.keys() - given.keys() - {"QueueName"}:
        raise ConfigurationError(f"the simulation does not support {', '.join(sorted(unknown))} of a queue")
    return SmqAttributes(**{field: properties[name] for name, field in given.items() if name in properties})


def _async_config(config: Mapping[str, Any]) -> AsyncInvokeConfig:
    defaults = AsyncInvokeConfig()
    destination = ((config.get("destinationConfig") or {}).get("onFailure") or {}).get("destination", "")
    return AsyncInvokeConfig(
        retries=config.get("maxAsyncRetryAttempts", defaults.retries),
        longest_age=timedelta(seconds=config.get("maxAsyncEventAgeInSeconds", defaults.longest_age.total_seconds())),
        on_failure=_queue_of(destination),
    )


def _queue_of(arn: str) -> str:
    """Return the name of a queue from its ARN, with or without `/messages` at its end; empty for no ARN."""
    return arn.removesuffix("/messages").rpartition("/")[2]
