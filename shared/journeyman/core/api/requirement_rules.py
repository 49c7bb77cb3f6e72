"""Rules for requirements, labels and taints, as NodePools and NodeClaims share them.

Restates: karpenter pkg/apis/v1/nodeclaim_validation.go `ValidateRequirement`, `validateTaints`; nodepool_validation.go
`validateLabels`; the v1 CRDs' patterns and CEL rules.

The CRDs admit what Karpenter's admit. Of that the models reject what Karpenter's controllers reject; the object is then
skipped, and reported by a condition and an Event.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from journeyman.core.api import labels
from journeyman.core.api.model import Int, Model, Time, ValidatedBy, crd, problem, rules
from journeyman.core.api.objects import NodeClassReference, NodeSelectorRequirement, Taint

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"]
TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]

NUMERIC_OPERATORS: Final = frozenset({"Gt", "Lt", "Gte", "Lte"})
QUALIFIED_NAME: Final = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE: Final = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
PUBLISHED_NAME: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"
)
"""The pattern of Karpenter's CRDs, which bounds no lengths."""
MAX_KEY: Final = 316
MAX_VALUE: Final = 63
MAX_PREFIX: Final = 253
MAX_REQUIREMENTS: Final = 100

CAPACITY_TYPES: Final = frozenset({labels.ON_DEMAND, labels.SPOT, labels.RESERVED})

_NAMES: Final = frozenset({labels.NODEPOOL, *labels.NODE_CLASSES})
"""Every node has the names of its NodePool and NodeClass as labels, so templates and NodeClaims may require them."""
_QUALIFIED: Final = re.compile(QUALIFIED_NAME, re.ASCII)
_VALUE: Final = re.compile(LABEL_VALUE, re.ASCII)


def check_key(key: str) -> str:
    """Return a valid label key. Raises a pydantic error otherwise."""
    if not _QUALIFIED.fullmatch(key) or key.find("/") > MAX_PREFIX:
        raise problem(
            f"{key!r} is not a label key: an optional DNS domain and a slash, then up to 63 letters, digits, '-', '_' or '.'"
        )
    return key


def check_value(value: str) -> str:
    """Return a valid label value. Raises a pydantic error otherwise."""
    if len(value) > MAX_VALUE or not _VALUE.fullmatch(value):
        raise problem(f"{value!r} is not a label value: up to 63 letters, digits, '-', '_' or '.', or empty")
    return value


def _check_unrestricted(key: str) -> str:
    published = key not in labels.WELL_KNOWN and key.split("/", 1)[0].endswith(labels.RESTRICTED_DOMAINS)
    if (labels.is_restricted(key) or published) and key not in _NAMES:
        raise problem(f"label {key!r} is reserved; use a well-known label or one of your own domain")
    return key


def _check_not_node_pool(key: str) -> str:
    if key == labels.NODEPOOL:
        raise problem(f"label {key!r} is set by the NodePool itself; remove it")
    return key


def domain_rules(subject: str, *, node_pool_allowed: bool) -> list[tuple[str, str]]:
    """Return CEL rules that reject restricted label domains; `subject` is the CEL name of the key."""
    found = [
        _domain_rule(subject, labels.GROUP, [labels.CAPACITY_TYPE, labels.NODEPOOL]),
        (f'label "{labels.HOSTNAME}" is restricted', f'{subject} != "{labels.HOSTNAME}"'),
        _domain_rule(subject, labels.AWS_GROUP, [labels.EC2NODECLASS, *_well_known(labels.AWS_GROUP)]),
        _domain_rule(subject, labels.ALIBABA_GROUP, [labels.ECSNODECLASS, *_well_known(labels.ALIBABA_GROUP)]),
        _domain_rule(subject, labels.ACS_GROUP, [labels.ACS_ECSNODECLASS]),
        _domain_rule(subject, labels.HUAWEI_GROUP, [labels.CCENODECLASS, *_well_known(labels.HUAWEI_GROUP)]),
    ]
    if not node_pool_allowed:
        found.insert(1, (f'label "{labels.NODEPOOL}" is restricted', f'{subject} != "{labels.NODEPOOL}"'))
    return found


def _well_known(domain: str) -> list[str]:
    return sorted(key for key in labels.WELL_KNOWN if key.startswith(f"{domain}/"))


def _domain_rule(subject: str, domain: str, allowed: Iterable[str]) -> tuple[str, str]:
    listed = ", ".join(f'"{key}"' for key in allowed)
    return (
        f'label domain "{domain}" is restricted',
        f"{subject} in [{listed}] || !{subject}.find('^([^/]+)').endsWith('{domain}')",
    )


def _check_template_labels(values: dict[str, str]) -> dict[str, str]:
    for key, value in values.items():
        check_key(key)
        _check_not_node_pool(key)
        _check_unrestricted(key)
        check_value(value)
    return values


TemplateLabels = Annotated[
    dict[str, Annotated[str, Field(json_schema_extra=crd(maxLength=MAX_VALUE, pattern=LABEL_VALUE))]],
    Field(
        max_length=100,
        json_schema_extra=rules(
            *((message, f"self.all(x, {rule})") for message, rule in domain_rules("x", node_pool_allowed=False)),
            x_kubernetes_map_type="atomic",
        ),
    ),
    AfterValidator(_check_template_labels),
]
"""Labels of a NodePool's template."""


def _key_facts(*, node_pool_allowed: bool) -> dict[str, Any]:
    restricted = domain_rules("self", node_pool_allowed=node_pool_allowed)
    return rules(*restricted, maxLength=MAX_KEY, pattern=PUBLISHED_NAME)


RequirementKey = Annotated[
    str,
    Field(json_schema_extra=_key_facts(node_pool_allowed=True)),
    AfterValidator(check_key),
    AfterValidator(_check_unrestricted),
]
TemplateRequirementKey = Annotated[
    str,
    Field(json_schema_extra=_key_facts(node_pool_allowed=False)),
    AfterValidator(check_key),
    AfterValidator(_check_not_node_pool),
    AfterValidator(_check_unrestricted),
]
LabelValue = Annotated[str, AfterValidator(check_value)]


class SelectorModel(Model):
    """A requirement on a node label."""

    key: RequirementKey = Field(description="Key of the label.")
    operator: Operator = Field(description="Relation of the label to the values.")
    values: tuple[LabelValue, ...] = Field(
        default=(),
        description="Values for In and NotIn, one integer for Gt, Lt, Gte and Lte; empty for Exists and DoesNotExist.",
        json_schema_extra=crd(x_kubernetes_list_type="atomic"),
    )

    @property
    def text(self) -> str:
        """The requirement as messages name it."""
        return f"key {self.key} with operator {self.operator}"

    @property
    def usable_values(self) -> tuple[str, ...]:
        """The values; of the capacity type only those that exist."""
        return tuple(v for v in self.values if self.key != labels.CAPACITY_TYPE or v in CAPACITY_TYPES)

    @model_validator(mode="after")
    def _values_suit_operator(self) -> Self:
        if self.operator == "In" and not self.values:
            raise problem(f"{self.text} must have a value")
        if self.operator in NUMERIC_OPERATORS and not (len(self.values) == 1 and _is_whole_number(self.values[0])):
            raise problem(f"{self.text} must have a single whole number that is not negative")
        if self.operator == "In" and not self.usable_values:
            raise problem(f"{self.text} must name one of {', '.join(sorted(CAPACITY_TYPES))}")
        return self


class RequirementModel(SelectorModel):
    """A requirement on a node label, with the minimum number of distinct values."""

    min_values: Int | None = Field(
        default=None,
        ge=1,
        le=50,
        description="Minimum number of distinct values that a launch must be able to choose from.",
    )

    @model_validator(mode="after")
    def _enough_values(self) -> Self:
        if self.operator == "In" and self.min_values is not None and len(self.usable_values) < self.min_values:
            raise problem(f"{self.text} must have at least minValues ({self.min_values}) values")
        return self


class TemplateRequirementModel(RequirementModel):
    """A requirement of a NodePool's template, which may not name the NodePool label."""

    key: TemplateRequirementKey = Field(description="Key of the label.")


def _check_taint_value(value: str) -> str:
    return check_key(value) if value else value


class TaintModel(Model):
    """A taint of a node."""

    key: Annotated[str, AfterValidator(check_key)] = Field(
        description="Key of the taint.",
        json_schema_extra=crd(minLength=1, pattern=PUBLISHED_NAME),
    )
    value: Annotated[str, AfterValidator(_check_taint_value)] = Field(
        default="",
        description="Value of the taint.",
        json_schema_extra=crd(pattern=f"^$|{PUBLISHED_NAME}"),
    )
    effect: TaintEffect = Field(description="Effect on pods that do not tolerate the taint.")
    time_added: Time | None = Field(default=None, description="Time at which the taint was added, for NoExecute.")


class NodeClassRefModel(Model):
    """A reference to the NodeClass, which has the cloud provider's settings."""

    group: str = Field(min_length=1, pattern=r"^[^/]*$", description="API group of the NodeClass.")
    kind: str = Field(min_length=1, description="Kind of the NodeClass.")
    name: str = Field(min_length=1, description="Name of the NodeClass.")


class TemplateNodeClassRefModel(NodeClassRefModel):
    """A reference to the NodeClass; group and kind of a NodePool's are immutable."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("nodeClassRef.group is immutable", "self.group == oldSelf.group"),
            ("nodeClassRef.kind is immutable", "self.kind == oldSelf.kind"),
        )
    )


def _is_whole_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_VALUE and int(text) < 2**63


def check_taints(taints: Iterable[Taint], startup_taints: Iterable[Taint]) -> None:
    """Check that key and effect pairs are unique in both lists. Raises a pydantic error otherwise."""
    for (key, effect), count in Counter((t.key, t.effect) for t in (*taints, *startup_taints)).items():
        if count > 1:
            raise problem(f"taint {key}:{effect} appears {count} times in taints and startupTaints; keep one")


REQUIREMENT_RULES: Final[Mapping[str, str]] = {
    "requirements with operator 'In' must have a value defined": (
        "self.all(x, x.operator == 'In' ? has(x.values) && x.values.size() != 0 : true)"
    ),
    "requirements operator 'Gt', 'Lt', 'Gte', or 'Lte' must have a single positive integer value": (
        "self.all(x, x.operator in ['Gt', 'Lt', 'Gte', 'Lte'] ? "
        "has(x.values) && x.values.size() == 1 && int(x.values[0]) >= 0 : true)"
    ),
    "requirements with 'minValues' must have at least that many values specified in the 'values' field": (
        "self.all(x, x.operator == 'In' && has(x.minValues) ? x.values.size() >= x.minValues : true)"
    ),
}

_LIST_FACTS = {"x_kubernetes_list_type": "atomic"}
_REQUIREMENTS = Field(
    max_length=MAX_REQUIREMENTS,
    description="Requirements on the labels of nodes, as defined by Kubernetes and the cloud provider.",
    json_schema_extra=rules(*REQUIREMENT_RULES.items(), **_LIST_FACTS),
)

Requirements = Annotated[
    tuple[Annotated[NodeSelectorRequirement, ValidatedBy(RequirementModel)], ...],
    _REQUIREMENTS,
]
TemplateRequirements = Annotated[
    tuple[Annotated[NodeSelectorRequirement, ValidatedBy(TemplateRequirementModel)], ...],
    _REQUIREMENTS,
]
Taints = Annotated[
    tuple[Annotated[Taint, ValidatedBy(TaintModel)], ...],
    Field(json_schema_extra=crd(**_LIST_FACTS)),
]
NodeClassRef = Annotated[NodeClassReference, ValidatedBy(NodeClassRefModel)]
TemplateNodeClassRef = Annotated[NodeClassReference, ValidatedBy(TemplateNodeClassRefModel)]
