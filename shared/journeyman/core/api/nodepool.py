"""NodePool (`karpenter.sh/v1`): the requirements, limits and disruption settings of a group of nodes.

Restates: karpenter pkg/apis/v1/nodepool.go, nodepool_validation.go, nodepool_status.go.
Differs: `consolidateAfter` has a default inside `disruption` too, as upstream's next version gives it.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from typing_extensions import Self

from journeyman.core.api import duration, labels, resources
from journeyman.core.api.conditions import Conditions
from journeyman.core.api.model import (
    MAX_INT32,
    Duration,
    Int,
    Metadata,
    Model,
    NillableDuration,
    ResourceTexts,
    crd,
    problem,
    rules,
)
from journeyman.core.api.objects import ObjectMeta
from journeyman.core.api.requirement_rules import (
    Taints,
    TemplateLabels,
    TemplateNodeClassRef,
    TemplateRequirements,
    check_taints,
)
from journeyman.core.api.windows import any_open, closing_time, windows_in
from journeyman.errors import ConfigurationError

Reason = Literal["Underutilized", "Empty", "Drifted"]
ConsolidationPolicy = Literal["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"]

_NODES: Final = r"^((100|[0-9]{1,2})%|[0-9]+)$"
_SCHEDULE: Final = r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$"


def _check_nodes(text: str) -> str:
    if not re.fullmatch(_NODES, text, re.ASCII):
        raise problem(f"{text!r} is neither a number of nodes nor a percentage from 0% to 100%")
    return text


def _check_budget_duration(text: str) -> str:
    if not re.fullmatch(duration.BUDGET_PATTERN, text, re.ASCII):
        raise problem(f"{text!r} is not a budget's duration: write hours and minutes as in 8h30m")
    return text


class Budget(Model):
    """A limit on the number of nodes that may be disrupted at once, and when it is active."""

    nodes: Annotated[str, AfterValidator(_check_nodes)] = Field(
        default="10%",
        description="Maximum number of this NodePool's nodes that may be disrupted at once: an integer or a percentage.",
        json_schema_extra=crd(pattern=_NODES),
    )
    schedule: str | None = Field(
        default=None,
        pattern=_SCHEDULE,
        description="Cron schedule at which the budget becomes active: five fields or a macro such as @daily, in UTC.",
    )
    duration: Annotated[Duration, AfterValidator(_check_budget_duration)] | None = Field(
        default=None,
        description="How long the budget is active from each start, in hours and minutes.",
        json_schema_extra=crd(pattern=duration.BUDGET_PATTERN),
    )
    reasons: Annotated[tuple[Reason, ...], AfterValidator(_check_reasons)] = Field(
        default=(),
        max_length=50,
        description="Disruption reasons that the budget limits; all of them if empty.",
        json_schema_extra=crd(x_kubernetes_list_type="set"),
    )


def _check_reasons(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    if len(set(reasons)) < len(reasons):
        raise problem("a reason is given twice; keep one")
    return reasons


def _check_budgets(budgets: tuple[Budget, ...]) -> tuple[Budget, ...]:
    for index, budget in enumerate(budgets):
        if (budget.schedule is None) != (budget.duration is None):
            raise problem(f"budget {index}: 'schedule' must be set with 'duration'; give both or neither")
    return budgets


def _ten_percent() -> tuple[Budget, ...]:
    return (Budget(),)


class Disruption(Model):
    """When and how many nodes may be disrupted."""

    consolidate_after: NillableDuration = Field(
        default="0s",
        description="Time without pod changes after which a node may be consolidated; Never disables consolidation.",
    )
    consolidation_policy: ConsolidationPolicy = Field(
        default="WhenEmptyOrUnderutilized", description="Which nodes may be consolidated."
    )
    budgets: Annotated[tuple[Budget, ...], AfterValidator(_check_budgets)] = Field(
        default_factory=_ten_percent,
        max_length=50,
        description="Limits on the number of nodes that may be disrupted at once; the most restrictive active budget applies.",
        json_schema_extra=rules(
            ("'schedule' must be set with 'duration'", "self.all(x, has(x.schedule) == has(x.duration))"),
            default=[{"nodes": "10%"}],
            x_kubernetes_list_type="atomic",
        ),
    )


class TemplateMetadata(Model):
    """Labels and annotations of the NodePool's nodes."""

    labels: TemplateLabels = Field(default={}, description="Labels of the nodes.")
    annotations: dict[str, str] = Field(
        default={}, description="Annotations of the nodes.", json_schema_extra=crd(x_kubernetes_map_type="granular")
    )


class NodePoolTemplateSpec(Model):
    """`spec` of the NodePool's NodeClaims."""

    taints: Taints = Field(default=(), description="Taints of the nodes.")
    startup_taints: Taints = Field(
        default=(),
        description="Taints that another component removes once the node is set up; scheduling ignores them.",
    )
    requirements: TemplateRequirements = Field(description="Requirements on the labels of nodes.")
    node_class_ref: TemplateNodeClassRef = Field(description="The NodeClass, which has the cloud provider's settings.")
    termination_grace_period: Duration | None = Field(
        default=None,
        description="Time after which a terminating node's pods are deleted, whatever blocks their eviction; unlimited if unset.",
    )
    expire_after: NillableDuration = Field(
        default="720h", description="Age at which a node is replaced; Never disables expiration."
    )

    @model_validator(mode="after")
    def _taints_are_unique(self) -> Self:
        check_taints(self.taints, self.startup_taints)
        return self


class NodePoolTemplate(Model):
    """The template of the NodePool's NodeClaims."""

    metadata: TemplateMetadata = Field(
        default_factory=TemplateMetadata,
        description="Labels and annotations of the nodes.",
    )
    spec: NodePoolTemplateSpec = Field(description="`spec` of the NodeClaims.")


class NodePoolSpec(Model):
    """`spec` of a NodePool."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "Cannot transition NodePool between static (replicas set) and dynamic (replicas unset) provisioning modes",
                "has(self.replicas) == has(oldSelf.replicas)",
            ),
            (
                "only 'limits.nodes' is supported on static NodePools",
                "!has(self.replicas) || !has(self.limits) || self.limits.all(name, name == 'nodes')",
            ),
            ("'weight' is not supported on static NodePools", "!has(self.replicas) || !has(self.weight)"),
        )
    )

    template: NodePoolTemplate = Field(description="The template of the NodePool's NodeClaims.")
    disruption: Disruption = Field(
        default_factory=Disruption,
        description="When and how many nodes may be disrupted.",
        json_schema_extra=crd(default={"consolidateAfter": "0s"}),
    )
    limits: ResourceTexts = Field(
        default={},
        description="Maximum of each resource over all nodes of the NodePool; `nodes` limits their number.",
    )
    weight: Int = Field(default=0, ge=1, le=100, description="NodePools of greater weight are preferred; 0 if unset.")
    replicas: Int | None = Field(
        default=None,
        ge=0,
        le=MAX_INT32,  # as the scale subresource has it
        description="A fixed number of nodes, independent of pods (static NodePool).",
        json_schema_extra=crd(format="int64", maximum=None),
    )

    @property
    def limit_amounts(self) -> dict[str, int]:
        """`limits` as exact amounts, rounded down; without those that are too large to limit anything, such as 1e99."""
        amounts = resources.to_resources(self.limits, round_up=False)
        return {name: amount for name, amount in amounts.items() if amount < resources.MAX_AMOUNT}

    @property
    def static(self) -> bool:
        """Whether the NodePool has a fixed number of nodes."""
        return self.replicas is not None

    @model_serializer(mode="wrap")
    def _without_zero_weight(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Zero means unset; the API server rejects it as a value."""
        wire: dict[str, Any] = serialize(self)
        if self.weight == 0:
            wire.pop("weight", None)
        return wire

    @model_validator(mode="after")
    def _static_pools_are_plain(self) -> Self:
        if self.replicas is not None:
            if set(self.limits) - {resources.NODES}:
                raise problem("only 'limits.nodes' is supported together with 'replicas'; remove the other limits")
            if self.weight:
                raise problem("'weight' is not supported together with 'replicas'; remove it")
        return self


class NodePoolStatus(Model):
    """`status` of a NodePool."""

    resources: ResourceTexts = Field(default={}, description="Resources of all nodes of the NodePool.")
    nodes: Int = Field(
        default=0,
        le=MAX_INT32,  # as the scale subresource has it
        description="Number of nodes of the NodePool.",
        json_schema_extra=crd(default=0, format="int64"),
    )
    node_class_observed_generation: Int = Field(
        default=0,
        description="Generation of the NodeClass that NodeRegistrationHealthy refers to.",
        json_schema_extra=crd(format="int64"),
    )
    conditions: Conditions = Field(default=(), description="ValidationSucceeded, NodeClassReady, Ready and others.")


class NodePool(Model):
    """The requirements, limits and disruption settings of a group of nodes."""

    api_version: Literal["karpenter.sh/v1"] = "karpenter.sh/v1"
    kind: Literal["NodePool"] = "NodePool"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: NodePoolSpec
    status: NodePoolStatus = Field(default_factory=NodePoolStatus)

    @property
    def packing(self) -> str:
        """The packing of pods into new nodes: `price` (the default) or `fewest-nodes`."""
        return self.metadata.annotations.get(labels.PACKING, "price")

    @property
    def is_pod_nomination_disabled(self) -> bool:
        """Whether pods planned for nodes of this pool are not nominated to them."""
        return self.metadata.annotations.get(labels.POD_NOMINATION) == "disabled"

    @property
    def node_surcharge(self) -> float:
        """The price of a node beyond its instance (licences, log agents), in the provider's currency per hour.

        The scheduler adds it to the price of each new node: with `journeyman.dev/node-surcharge: "0.05"` it chooses two
        small nodes over a large one only if they are more than 0.05 cheaper. Reported prices do not include it.

        Raises:
            ConfigurationError: The annotation is not a finite number, or negative.
        """
        text = self.metadata.annotations.get(labels.NODE_SURCHARGE, "0")
        try:
            price = float(text)
        except ValueError:
            price = math.nan
        if not 0 <= price < math.inf:
            raise ConfigurationError(
                f"annotation {labels.NODE_SURCHARGE}: {text!r} is not a price per hour, such as 0.05"
            )
        return price

    def hibernates_until(self, now: datetime) -> datetime | None:
        """Return when the NodePool's hibernation ends; None if it does not hibernate now.

        In the windows of its annotation `journeyman.dev/hibernate` it launches no nodes, and its nodes are disrupted.

        Raises:
            ConfigurationError: The annotation is invalid, or its windows leave no time without hibernation.
        """
        windows = windows_in(self.metadata.annotations, labels.HIBERNATE)
        if not any_open(windows, now):
            return None
        end = closing_time(windows, now)
        if end is None:
            raise ConfigurationError(
                f"annotation {labels.HIBERNATE}: its windows never close; leave a time without one"
            )
        return end

    def is_hibernating(self, now: datetime) -> bool:
        """Whether the NodePool hibernates now; with an invalid annotation it does not."""
        try:
            return self.hibernates_until(now) is not None
        except ConfigurationError:
            return False
