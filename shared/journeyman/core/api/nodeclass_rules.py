"""What NodeClasses of several clouds share: rules of selector terms, tags, aliases and volume sizes; status models.

Any term of a list may match; all fields of a term must match. Like Karpenter, most lists admit an `id` with other fields beside a
term without, so that the same manifests are valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field
from pydantic.alias_generators import to_camel

from journeyman.core.api.model import Model, crd, problem, rules

MAX_TERMS: Final = 30
FORBIDDEN_TAG_PREFIX: Final = "kubernetes.io/cluster"
VOLUME_SIZE: Final = (
    r"^(([1-9][0-9]{0,3}|[1-4][0-9]{4}|5[0-8][0-9]{3}|59000)Gi|([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-3][0-9]{3}|64000)G"
    r"|([1-9]|[1-4][0-9]|5[0-8])Ti|([1-9]|[1-5][0-9]|6[0-4])T)$"
)
_ALIAS: Final = "^[a-zA-Z0-9]+@.+$"

Terms = tuple[Model, ...]


class SecurityGroup(Model):
    """A security group found by the selector terms."""

    id: str = Field(description="ID of the security group.")
    name: str = Field(default="", description="Name of the security group.")


class ImageRequirementModel(Model):
    """A requirement on the instance types that can boot an image."""

    key: str = Field(description="Key of the label.")
    operator: str = Field(description="Relation of the label to the values.")
    values: tuple[str, ...] = Field(
        default=(), description="Values of the label.", json_schema_extra=crd(x_kubernetes_list_type="atomic")
    )


def _check_selector_tags(tags: dict[str, str]) -> dict[str, str]:
    if any(not key or not value for key, value in tags.items()):
        raise problem("empty tag keys or values aren't supported; write * as the value to match any")
    return tags


Tags = Annotated[
    dict[str, str],
    Field(
        max_length=20,
        description="Tags to match; the value * matches any.",
        json_schema_extra=rules(
            ("empty tag keys or values aren't supported", "self.all(k, k != '' && self[k] != '')"),
        ),
    ),
    AfterValidator(_check_selector_tags),
]
"""The tags of a selector term."""


def check_volume_size(text: str) -> str:
    """Return a valid volume size. Raises a pydantic error otherwise."""
    if not re.fullmatch(VOLUME_SIZE, text, re.ASCII):
        raise problem(f"{text!r} is not a volume size: write whole Gi, G, Ti or T, from 1Gi to 58Ti")
    return text


def resource_tags_checker(forbidden: Collection[str]) -> Callable[[dict[str, str]], dict[str, str]]:
    """Return a validator of the tags of created resources, which may not be those that the controller sets."""

    def check(tags: dict[str, str]) -> dict[str, str]:
        for key in tags:
            if not key:
                raise problem("a tag key is empty; remove it")
            if key in forbidden or key.startswith(FORBIDDEN_TAG_PREFIX):
                raise problem(f"tag {key!r} is set by the controller itself; remove it")
        return tags

    return check


def resource_tags_rules(forbidden: Sequence[str]) -> dict[str, Any]:
    """Return the CEL rules of `resource_tags_checker`."""
    return rules(
        ("empty tag keys aren't supported", "self.all(k, k != '')"),
        *((f"tag contains a restricted tag matching {tag}", f"self.all(k, k != '{tag}')") for tag in forbidden),
        (
            f"tag contains a restricted tag matching {FORBIDDEN_TAG_PREFIX}/",
            f"self.all(k, !k.startsWith('{FORBIDDEN_TAG_PREFIX}'))",
        ),
    )


def alias_checker(families: Collection[str]) -> Callable[[str], str]:
    """Return a validator of image aliases, `family@version`."""

    def check(alias: str) -> str:
        if not re.fullmatch(_ALIAS, alias, re.ASCII):
            raise problem(f"{alias!r} is improperly formatted, must match the format 'family@version'")
        family = alias.split("@", 1)[0]
        if family not in families:
            raise problem(f"family {family!r} is not supported, must be one of {', '.join(families)}")
        return alias

    return check


def alias_rules(families: Collection[str]) -> list[tuple[str, str]]:
    """Return the CEL rules of `alias_checker`."""
    return [
        (
            "'alias' is improperly formatted, must match the format 'family@version'",
            f"self.matches('{_ALIAS}')",
        ),
        (
            f"family is not supported, must be one of the following: {', '.join(map(repr, families))}",
            f"self.split('@')[0] in {list(families)}",
        ),
    ]


def terms_checker(*checks: Callable[[Terms], None], of: tuple[str, ...]) -> Callable[[Terms], Terms]:
    """Return a validator of a term list: each term must have one of the fields `of`; then the checks."""

    def validate(terms: Terms) -> Terms:
        for index, term in enumerate(terms):
            if all(getattr(term, field) is None for field in of):
                raise problem(f"term {index}: expected at least one, got none, of {', '.join(map(to_camel, of))}")
        for check in checks if terms else ():
            check(terms)
        return terms

    return validate


def at_least_one_rule(*fields: str) -> tuple[str, str]:
    """Return the CEL rule that each term has one of these fields."""
    return (
        f"expected at least one, got none, [{', '.join(map(repr, fields))}]",
        f"self.all(x, {' || '.join(f'has(x.{field})' for field in fields)})",
    )


def exclusive_rule(field: str, others: tuple[str, ...], what: str, *, every: bool = True) -> tuple[str, str]:
    """Return the CEL rule of `reject_if_every` (the default) or `reject_if_any`."""
    quantifier = "all" if every else "exists"
    return (
        f"'{field}' is mutually exclusive, cannot be set with a combination of other fields in {what}",
        f"!self.{quantifier}(x, has(x.{field}) && ({' || '.join(f'has(x.{other})' for other in others)}))",
    )


def reject_if_every(field: str, others: tuple[str, ...]) -> Callable[[Terms], None]:
    """Return a check that rejects a list if every term has the field together with one of the others."""

    def check(terms: Terms) -> None:
        if all(_mixes(term, field, others) for term in terms):
            raise _mixed(field, others)

    return check


def reject_if_any(field: str, others: tuple[str, ...]) -> Callable[[Terms], None]:
    """Return a check that rejects a list if one term has the field together with one of the others."""

    def check(terms: Terms) -> None:
        if any(_mixes(term, field, others) for term in terms):
            raise _mixed(field, others)

    return check


def _mixed(field: str, others: tuple[str, ...]) -> Exception:
    return problem(f"'{field}' is mutually exclusive with {', '.join(others)}; use separate terms")


def _mixes(term: Model, field: str, others: tuple[str, ...]) -> bool:
    return getattr(term, field) is not None and any(getattr(term, other) is not None for other in others)


def only_alias_rule(field: str) -> tuple[str, str]:
    """Return the CEL rule of `reject_alias_beside_others`."""
    return (
        f"'alias' is mutually exclusive, cannot be set with a combination of other {field}",
        "!(self.exists(x, has(x.alias)) && self.size() != 1)",
    )


def reject_alias_beside_others(terms: Terms) -> None:
    """Reject a list that has an alias and further terms."""
    if len(terms) > 1 and any(getattr(term, "alias", None) is not None for term in terms):
        raise problem("'alias' must be the only term")
