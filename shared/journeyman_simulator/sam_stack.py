"""Creates a SAM template's queues, rules, schedules, functions and event source mappings in a simulated account.

The demo, replay and end-to-end tests run on the deployed template, and so test it. Each function has the role that SAM would
create for it, so that the account denies what its policies do not allow. The stack skips resource types that have no effect
in a simulation (alarms, log groups, the API). `IntrinsicFunctions` evaluates the template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from journeyman.ports import Clock
from journeyman_simulator.cloud_rules.intrinsic_functions import NO_VALUE, IntrinsicFunctions
from journeyman_simulator.cloud_rules.policy_statements import PolicyStatement, read_statements
from journeyman_simulator.lambda_functions import EventSourceMapping, LambdaFunction, LambdaHandler

_ROLE = "arn:aws:iam::123456789012:role/simulated"
_POLLER_ACTIONS: Final = (  # of SAM's policy template
    "sqs:ChangeMessageVisibility",
    "sqs:ChangeMessageVisibilityBatch",
    "sqs:DeleteMessage",
    "sqs:DeleteMessageBatch",
    "sqs:GetQueueAttributes",
    "sqs:ReceiveMessage",
)
_QUEUE_ATTRIBUTES = (
    "FifoQueue",
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoThroughputLimit",
    "VisibilityTimeout",
    "MessageRetentionPeriod",
)


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is faster, but not in every build


class _TemplateLoader(_SafeLoader):  # type: ignore[misc]
    """Loads YAML with CloudFormation's short tags."""


def _tagged(loader: Any, suffix: str, node: yaml.Node) -> dict[str, Any]:
    key = suffix if suffix == "Ref" else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        return {key: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {key: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)  # noqa: S101 - YAML has no fourth kind of node
    return {key: loader.construct_mapping(node, deep=True)}


_TemplateLoader.add_multi_constructor("!", _tagged)


def read_template(path: Path) -> dict[str, Any]:
    """Return the template, with each short tag in its long form."""
    template: dict[str, Any] = yaml.load(path.read_text(), Loader=_TemplateLoader)  # noqa: S506 - a SafeLoader
    return template


class SamStack:
    """The resources of a template in an account.

    Args:
        aws: The account in which to create the resources.
        template: The result of `read_template`.
        parameters: Values of parameters, which override their defaults.
    """

    def __init__(self, aws: AwsAccount, template: Mapping[str, Any], parameters: Mapping[str, str]) -> None:
        self._aws = aws
        self._sqs = aws.client("sqs")
        self._resources: Mapping[str, Mapping[str, Any]] = template["Resources"]
        self._functions = IntrinsicFunctions(template.get("Conditions", {}), self._reference, self._attribute)
        self._globals: Mapping[str, Any] = template["Globals"]["Function"]
        defaults = {name: str(p["Default"]) for name, p in template["Parameters"].items() if "Default" in p}
        self._lists = {name for name, p in template["Parameters"].items() if p["Type"] == "CommaDelimitedList"}
        self._parameters = {**defaults, **parameters}
        self._queue_urls: dict[str, str] = {}
        self._queue_arns: dict[str, str] = {}
        self.functions: dict[str, LambdaFunction] = {}
        self.mappings: tuple[EventSourceMapping, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables of every function, after creating the queues that they name."""
        return {name: str(self._value(v)) for name, v in self._globals["Environment"]["Variables"].items()}

    @property
    def layers(self) -> list[str]:
        """Return the logical ids of the functions' layers that the stack creates."""
        created = set(self._of_type("AWS::Serverless::LayerVersion"))
        return [name for name in self._value(self._globals["Layers"]) if name in created]

    @property
    def queue_urls(self) -> Mapping[str, str]:
        """Return the URLs of all queues by logical id."""
        return dict(self._queue_urls)

    @property
    def dead_letter_urls(self) -> tuple[str, ...]:
        """Return the URLs of the dead-letter queues."""
        return tuple(url for name, url in sorted(self._queue_urls.items()) if name.endswith("DeadLetters"))

    def create_resources(
        self,
        load_handler: Callable[[str], LambdaHandler],
        clock: Clock,
        queue_due: Callable[[str], datetime | None],
    ) -> None:
        """Create all resources.

        Args:
            load_handler: Returns the function that the template's property `Handler` names.
            clock: The clock that dates the functions' invocations.
            queue_due: Returns when the next message of the queue with that name can be received.
        """
        for name in self._of_type("AWS::SQS::Queue"):
            self._queue_url(name)
        for name in self._of_type("AWS::Serverless::Function"):
            self._make_function(name, load_handler, clock)
        self.mappings = tuple(
            self._mapping(name, queue_due) for name in self._of_type("AWS::Lambda::EventSourceMapping")
        )
        for name in self._of_type("AWS::Events::Rule"):
            self._put_rule(name)
        for name in self._of_type("AWS::Scheduler::ScheduleGroup"):
            self._aws.client("scheduler").create_schedule_group(Name=name)
        for name in self._of_type("AWS::Scheduler::Schedule"):
            self._create_schedule(name)

    def role_of(self, function: str) -> tuple[PolicyStatement, ...]:
        """Return the statements of a function's role, without AWS's policies for logs, traces and network interfaces."""
        found: list[PolicyStatement] = []
        for policy in self._properties(function).get("Policies", ()):
            if "Ref" in policy:
                found += self._managed_policy(policy["Ref"])
            elif "SQSPollerPolicy" in policy:
                queue = str(policy["SQSPollerPolicy"]["QueueName"]["Fn::GetAtt"]).partition(".")[0]
                statement = {"Effect": "Allow", "Action": _POLLER_ACTIONS, "Resource": self._queue_arn(queue)}
                found += read_statements("SQSPollerPolicy", {"Statement": statement})
            else:
                found += read_statements("inline", self._value({"Statement": policy["Statement"]}))
        for name in self._of_type("AWS::IAM::ManagedPolicy"):
            if {"Ref": f"{function}Role"} in self._properties(name).get("Roles", ()):
                found += self._managed_policy(name)
        return tuple(found)

    def policy_document(self, name: str) -> dict[str, Any]:
        """Return the document of a managed policy, with its intrinsic functions evaluated."""
        document: dict[str, Any] = self._value(self._properties(name)["PolicyDocument"])
        return document

    def _managed_policy(self, name: str) -> tuple[PolicyStatement, ...]:
        return read_statements(name, self.policy_document(name))

    def _of_type(self, kind: str) -> Iterator[str]:
        for name, resource in self._resources.items():
            condition = resource.get("Condition")
            if resource["Type"] == kind and (condition is None or self._functions.holds(condition)):
                yield name

    def _properties(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._resources[name].get("Properties", {})
        return found

    def _queue_url(self, name: str) -> str:
        if name not in self._queue_urls:
            properties = self._properties(name)
            attributes = {key: _text(properties[key]) for key in _QUEUE_ATTRIBUTES if key in properties}
            if "RedrivePolicy" in properties:
                attributes["RedrivePolicy"] = json.dumps(self._value(properties["RedrivePolicy"]))
            queue_name = str(self._value(properties.get("QueueName", name)))
            response = self._sqs.create_queue(QueueName=queue_name, Attributes=attributes)
            url = self._queue_urls[name] = response["QueueUrl"]
            # read now, because a function that evaluates its variables later may not
            response = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
            self._queue_arns[name] = str(response["Attributes"]["QueueArn"])
        return self._queue_urls[name]

    def _queue_arn(self, name: str) -> str:
        self._queue_url(name)
        return self._queue_arns[name]

    def _make_function(self, name: str, load_handler: Callable[[str], LambdaHandler], clock: Clock) -> None:
        properties = self._properties(name)
        self.functions[name] = LambdaFunction(
            name=name,
            handler=load_handler(properties["Handler"]),
            clock=clock,
            memory_mb=properties["MemorySize"],
            timeout_seconds=properties["Timeout"],
            allows_loops=self._value(properties.get("RecursiveLoop", "Terminate")) == "Allow",
            region=self._aws.region,
        )

    def _mapping(self, name: str, queue_due: Callable[[str], datetime | None]) -> EventSourceMapping:
        properties = self._properties(name)
        queue = str(properties["EventSourceArn"]["Fn::GetAtt"]).split(".", maxsplit=1)[0]
        url = self._queue_url(queue)
        queue_name = url.rsplit("/", 1)[-1]
        return EventSourceMapping(
            self._sqs,
            url,
            self.functions[properties["FunctionName"]["Ref"]],
            due=lambda: queue_due(queue_name),
            batch_size=properties["BatchSize"],
            report_batch_item_failures="ReportBatchItemFailures" in properties.get("FunctionResponseTypes", ()),
        )

    def _put_rule(self, name: str) -> None:
        properties = self._properties(name)
        events = self._aws.client("events")
        events.put_rule(Name=name, EventPattern=json.dumps(properties["EventPattern"]))
        events.put_targets(Rule=name, Targets=self._value(properties["Targets"]))

    def _create_schedule(self, name: str) -> None:
        properties = self._value(self._properties(name))
        self._aws.client("scheduler").create_schedule(
            Name=name,
            ScheduleExpression=properties["ScheduleExpression"],
            FlexibleTimeWindow=properties["FlexibleTimeWindow"],
            Target={**properties["Target"], "RoleArn": _ROLE},
        )

    def _value(self, value: Any) -> Any:
        """Return the value with its intrinsic functions evaluated."""
        return self._functions.value(value)

    def _reference(self, name: str) -> Any:
        pseudo = {
            "AWS::Region": self._aws.region,
            "AWS::AccountId": self._aws.account,
            "AWS::StackName": "journeyman",
            "AWS::Partition": "aws",
            "AWS::NoValue": NO_VALUE,
        }
        if name in pseudo:
            return pseudo[name]
        if name in self._parameters:
            given = self._parameters[name]
            return given.split(",") if name in self._lists else given
        kind = self._resources[name]["Type"]
        return self._queue_url(name) if kind == "AWS::SQS::Queue" else name

    def _attribute(self, path: str) -> str:
        name, _, attribute = path.partition(".")
        kind = self._resources[name]["Type"]
        if kind == "AWS::SQS::Queue" and attribute == "Arn":
            return self._queue_arn(name)
        if kind == "AWS::SQS::Queue" and attribute == "QueueName":
            return self._queue_url(name).rsplit("/", 1)[-1]
        if kind == "AWS::Serverless::Function":
            return self.functions[name].arn
        return _ROLE


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ClientSource(Protocol):
    """An account that makes boto3 clients."""

    def client(self, service: str) -> Any:
        """Return a boto3 client."""
        ...


class AwsAccount(ClientSource, Protocol):
    """An account that makes boto3 clients, with its id and region."""

    region: str
    account: str
