"""NodePool (`karpenter.sh/v1`): what a group of nodes may be like, how many there may be, when they may go.

Restates: karpenter pkg/apis/v1/nodepool.go, nodepool_validation.go, nodepool_status.go.
Differs: `consolidateAfter` has a default inside `disruption` too, as upstream's next version gives it.
"""

from __future__ import annotations

import math
import re
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
    TAINTS_RULE,
    Taints,
    TemplateLabels,
    TemplateNodeClassRef,
    TemplateRequirements,
    check_taints,
)
from journeyman.errors import ConfigurationError

Reason = Literal["Underutilized", "Empty", "Drifted"]
ConsolidationPolicy = Literal["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"]

_NODES: Final = r"^((100|[0-9]{1,2})%|[0-9]+)$"
_SCHEDULE: Final = r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$"


def _check_nodes(text: str) -> str:
    if len(text) > 10 or not re.fullmatch(_NODES, text, re.ASCII):
        raise problem(f"{text!r} is neither a number of nodes nor a percentage from 0% to 100%")
    return text


def _check_budget_duration(text: str) -> str:
    if not re.fullmatch(duration.BUDGET_PATTERN, text, re.ASCII):
        raise problem(f"{text!r} is not a budget's duration: write hours and minutes as in 8h30m")
    return text


class Budget(Model):
    """How many nodes may be disrupted at once, and when this budget counts."""

    nodes: Annotated[str, AfterValidator(_check_nodes)] = Field(
        default="10%",
        description="The most nodes of this pool that may be on their way out: a number, or a percentage of them.",
        json_schema_extra=crd(pattern=_NODES, maxLength=10),
    )
    schedule: str | None = Field(
        default=None,
        pattern=_SCHEDULE,
        max_length=256,
        description="When the budget starts to count: five cron fields or a macro such as @daily, in UTC.",
    )
    duration: Annotated[Duration, AfterValidator(_check_budget_duration)] | None = Field(
        default=None,
        description="How long it counts from each start, in hours and minutes.",
        json_schema_extra=crd(pattern=duration.BUDGET_PATTERN),
    )
    reasons: Annotated[tuple[Reason, ...], AfterValidator(_check_reasons)] = Field(
        default=(),
        max_length=50,
        description="Which kinds of disruption it limits; all of them if empty.",
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
    """When and how fast nodes may be taken back."""

    consolidate_after: NillableDuration = Field(
        default="0s", description="How long a node must have been quiet before it is consolidated; Never turns it off."
    )
    consolidation_policy: ConsolidationPolicy = Field(
        default="WhenEmptyOrUnderutilized", description="Which nodes consolidation may take."
    )
    budgets: Annotated[tuple[Budget, ...], AfterValidator(_check_budgets)] = Field(
        default_factory=_ten_percent,
        max_length=50,
        description="Limits on how many nodes go at once; the smallest that counts holds.",
        json_schema_extra=rules(
            ("'schedule' must be set with 'duration'", "self.all(x, has(x.schedule) == has(x.duration))"),
            default=[{"nodes": "10%"}],
            x_kubernetes_list_type="atomic",
        ),
    )


class TemplateMetadata(Model):
    """Labels and annotations that every node of the pool gets."""

    labels: TemplateLabels = Field(default={}, description="Labels of the nodes.")
    annotations: dict[str, str] = Field(
        default={}, description="Annotations of the nodes.", json_schema_extra=crd(x_kubernetes_map_type="granular")
    )


class NodeClaimTemplateSpec(Model):
    """What the pool's NodeClaims are made from."""

    model_config = ConfigDict(json_schema_extra=rules(TAINTS_RULE))

    taints: Taints = Field(default=(), description="Taints of the nodes.")
    startup_taints: Taints = Field(
        default=(), description="Taints that something else removes once the node is set up; scheduling ignores them."
    )
    requirements: TemplateRequirements = Field(description="What nodes must be like.")
    node_class_ref: TemplateNodeClassRef = Field(description="Which NodeClass gives the cloud's part.")
    termination_grace_period: Duration | None = Field(
        default=None, description="How long a drain may take before pods are deleted by force; without it, for ever."
    )
    expire_after: NillableDuration = Field(
        default="720h", description="How old a node may grow before it is replaced; Never turns it off."
    )

    @model_validator(mode="after")
    def _taints_are_unique(self) -> Self:
        check_taints(self.taints, self.startup_taints)
        return self


class NodeClaimTemplate(Model):
    """The template for the pool's NodeClaims."""

    metadata: TemplateMetadata = Field(
        default_factory=TemplateMetadata,
        description="Labels and annotations of the nodes.",
    )
    spec: NodeClaimTemplateSpec = Field(description="What the NodeClaims are made from.")


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

    template: NodeClaimTemplate = Field(description="The template for the pool's NodeClaims.")
    disruption: Disruption = Field(
        default_factory=Disruption,
        description="When and how fast nodes may be taken back.",
        json_schema_extra=crd(default={"consolidateAfter": "0s"}),
    )
    limits: ResourceTexts = Field(
        default={},
        description="The most of each resource that all nodes of the pool may have together; `nodes` counts them.",
    )
    weight: Int = Field(default=0, ge=1, le=100, description="Pools of greater weight are tried first; 0 if not given.")
    replicas: Int | None = Field(
        default=None, ge=0, le=MAX_INT32, description="A fixed number of nodes; the pool then does not follow the pods."
    )

    @property
    def limit_amounts(self) -> dict[str, int]:
        """`limits` as exact amounts, rounded down."""
        return resources.to_resources(self.limits, round_up=False)

    @property
    def static(self) -> bool:
        """Whether the pool has a fixed number of nodes."""
        return self.replicas is not None

    @model_serializer(mode="wrap")
    def _without_zero_weight(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Zero means "not given", which the API server does not take as a value."""
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

    resources: ResourceTexts = Field(default={}, description="What the pool's nodes have together.")
    nodes: Int = Field(
        default=0,
        le=MAX_INT32,  # as the scale subresource has it
        description="How many nodes the pool has.",
        json_schema_extra=crd(default=0, format="int64"),
    )
    node_class_observed_generation: Int = Field(
        default=0,
        description="The NodeClass generation that registration health is about.",
        json_schema_extra=crd(format="int64"),
    )
    conditions: Conditions = Field(default=(), description="ValidationSucceeded, NodeClassReady, Ready and others.")


class NodePool(Model):
    """What a group of nodes may be like, how many there may be, and when they may go."""

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
