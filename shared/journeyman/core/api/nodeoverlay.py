"""NodeOverlay (`karpenter.sh/v1alpha1`): changes the price or adds extended resources of instance types.

For example prices with savings plans or licences, and resources that device plugins add.

Restates: karpenter pkg/apis/v1alpha1/nodeoverlay.go, nodeoverlay_validation.go.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from journeyman.core.api import resources
from journeyman.core.api.conditions import Conditions
from journeyman.core.api.model import Int, Metadata, Model, ResourceTexts, ValidatedBy, crd, problem, rules
from journeyman.core.api.objects import NodeSelectorRequirement, ObjectMeta
from journeyman.core.api.requirement_rules import MAX_REQUIREMENTS, SelectorModel

_PRICE: Final = r"^[0-9]+(\.[0-9]+)?$"
_ADJUSTMENT: Final = r"^([+-][0-9]*\.?[0-9]+|\+[0-9]*\.?[0-9]+%|-[0-9]{1,2}(\.[0-9]+)?%|-100%)$"
_BASIC: Final = (resources.CPU, resources.MEMORY, resources.EPHEMERAL_STORAGE, resources.PODS)

KNOWN_RESOURCES: Final = frozenset(
    {
        *_BASIC,
        "nvidia.com/gpu",
        "amd.com/gpu",
        "habana.ai/gaudi",
        "aws.amazon.com/neuron",
        "aws.amazon.com/neuroncore",
        "vpc.amazonaws.com/efa",
        "vpc.amazonaws.com/pod-eni",
        "vpc.amazonaws.com/PrivateIPv4Address",
    }
)
"""Resources whose amounts the cloud provider knows; an overlay may not set them. The CRD admits all but the basic ones."""


class OverlayRequirementModel(SelectorModel):
    """A requirement on the labels of instance types, their offerings and their NodePool."""

    @model_validator(mode="after")
    def _excludes_something(self) -> Self:
        if self.operator == "NotIn" and not self.values:
            raise problem(f"{self.text} must have a value")
        return self


def _check_price(text: str) -> str:
    if not re.fullmatch(_PRICE, text, re.ASCII):
        raise problem(f"{text[:64]!r} is not a price: write a number such as 0.05")
    return _check_finite(text)


def _check_adjustment(text: str) -> str:
    if not re.fullmatch(_ADJUSTMENT, text, re.ASCII):
        raise problem(f"{text[:64]!r} is not a change of a price: write +0.5, -0.5, +10% or -15%")
    return _check_finite(text)


def _check_finite(text: str) -> str:
    if not math.isfinite(float(text.rstrip("%"))):
        raise problem(f"{text[:64]!r} is too large for a price")
    return text


def _check_extended(texts: dict[str, Any]) -> dict[str, Any]:
    reserved = sorted(KNOWN_RESOURCES & texts.keys())
    if reserved:
        raise problem(f"{', '.join(reserved)}: set by the cloud provider; only extended resources can be added")
    return texts


class NodeOverlaySpec(Model):
    """`spec` of a NodeOverlay."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("cannot set both 'price' and 'priceAdjustment'", "!has(self.price) || !has(self.priceAdjustment)")
        )
    )

    requirements: tuple[Annotated[NodeSelectorRequirement, ValidatedBy(OverlayRequirementModel)], ...] = Field(
        max_length=MAX_REQUIREMENTS,
        description="Requirements on the instance types and offerings that the overlay changes.",
        json_schema_extra=rules(
            (
                "requirements with operator 'In' or 'NotIn' must have a value defined",
                "self.all(x, x.operator in ['In', 'NotIn'] ? has(x.values) && x.values.size() != 0 : true)",
            ),
            (
                "requirements operator 'Gt', 'Lt', 'Gte' or 'Lte' must have a single positive integer value",
                (
                    "self.all(x, x.operator in ['Gt', 'Lt', 'Gte', 'Lte'] ? "
                    "has(x.values) && x.values.size() == 1 && int(x.values[0]) >= 0 : true)"
                ),
            ),
            x_kubernetes_list_type="atomic",
        ),
    )
    price: Annotated[str, AfterValidator(_check_price)] | None = Field(
        default=None, description="Price of a matching offering per hour.", json_schema_extra=crd(pattern=_PRICE)
    )
    price_adjustment: Annotated[str, AfterValidator(_check_adjustment)] | None = Field(
        default=None,
        description="Change of a matching offering's price: +0.5, -0.5, +10%, -15%.",
        json_schema_extra=crd(pattern=_ADJUSTMENT),
    )
    capacity: Annotated[ResourceTexts, AfterValidator(_check_extended)] = Field(
        default={},
        description="Extended resources of matching instance types, in addition to the cloud provider's.",
        json_schema_extra=rules(
            ("invalid resource restricted", f"self.all(x, !(x in {list(_BASIC)}))"),
        ),
    )
    weight: Int = Field(
        default=0,
        ge=1,
        le=10000,
        description="Overlays of greater weight take precedence; 0 if unset. Equal weights: the later name.",
    )

    @model_validator(mode="after")
    def _one_price(self) -> Self:
        if self.price is not None and self.price_adjustment is not None:
            raise problem("'price' and 'priceAdjustment' are mutually exclusive; keep one")
        return self

    @property
    def capacity_amounts(self) -> dict[str, int]:
        """`capacity` as exact amounts, rounded down."""
        return resources.to_resources(self.capacity, round_up=False)

    @property
    def changes_price(self) -> bool:
        """Whether it overrides or adjusts prices."""
        return self.price is not None or self.price_adjustment is not None

    def adjusted(self, price: float) -> float:
        """Return the price per hour with this overlay, at least 0.

        Restates: karpenter pkg/cloudprovider/types.go `AdjustedPrice`.
        """
        if self.price is not None:
            return float(self.price)
        change = self.price_adjustment or "+0"
        if change.endswith("%"):
            return max(price * (1 + float(change[:-1]) / 100), 0.0)
        return max(price + float(change), 0.0)


class NodeOverlayStatus(Model):
    """`status` of a NodeOverlay."""

    conditions: Conditions = Field(default=(), description="ValidationSucceeded and Ready.")


class NodeOverlay(Model):
    """Overrides the price, or adds extended resources, of matching instance types in scheduling."""

    api_version: Literal["karpenter.sh/v1alpha1"] = "karpenter.sh/v1alpha1"
    kind: Literal["NodeOverlay"] = "NodeOverlay"
    metadata: Metadata = Field(default_factory=ObjectMeta)
    spec: NodeOverlaySpec
    status: NodeOverlayStatus = Field(default_factory=NodeOverlayStatus)
