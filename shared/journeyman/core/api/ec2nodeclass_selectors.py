"""Selector terms of an EC2NodeClass: any term may match, all fields of a term must match.

Restates: karpenter-provider-aws pkg/apis/v1/ec2nodeclass.go and its CRD.

Like Karpenter, the models reject an `id` with other fields only if every term has both, so that the same manifests are valid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from typing_extensions import Self

from journeyman.core.api.model import Model, problem, rules

AMIFamily = Literal["AL2", "AL2023", "Bottlerocket", "Custom", "Windows2019", "Windows2022", "Windows2025"]

FAMILY_OF_ALIAS: Final[dict[str, AMIFamily]] = {
    "al2": "AL2",
    "al2023": "AL2023",
    "bottlerocket": "Bottlerocket",
    "windows2019": "Windows2019",
    "windows2022": "Windows2022",
    "windows2025": "Windows2025",
}
_WINDOWS: Final = [alias for alias in FAMILY_OF_ALIAS if alias.startswith("windows")]
_MAX_TERMS: Final = 30


def _check_tags(tags: dict[str, str]) -> dict[str, str]:
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
    AfterValidator(_check_tags),
]


class SubnetSelectorTerm(Model):
    """Subnets with these tags, or this id."""

    tags: Tags | None = None
    id: str | None = Field(default=None, pattern=r"subnet-[0-9a-z]+", description="ID of the subnet.")


class SecurityGroupSelectorTerm(Model):
    """Security groups with these tags, this id or this name."""

    tags: Tags | None = None
    id: str | None = Field(default=None, pattern=r"sg-[0-9a-z]+", description="ID of the security group.")
    name: str | None = Field(default=None, description="Name of the security group (not its Name tag).")


class CapacityReservationSelectorTerm(Model):
    """Capacity reservations with these tags and owner, or this id."""

    tags: Tags | None = None
    id: str | None = Field(default=None, pattern=r"^cr-[0-9a-z]+$", description="ID of the capacity reservation.")
    owner_id: str | None = Field(
        default=None,
        alias="ownerID",
        pattern=r"^[0-9]{12}$",
        description="ID of the account that owns the capacity reservation.",
    )
    instance_match_criteria: Literal["open", "targeted"] | None = Field(
        default=None, description="Instance matching of the capacity reservation: open or targeted."
    )


class PlacementGroupSelector(Model):
    """A placement group by name or by id."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("expected at least one, got none, ['name', 'id']", "has(self.name) || has(self.id)"),
            ("'name' and 'id' are mutually exclusive", "!(has(self.name) && has(self.id))"),
        )
    )

    name: str | None = Field(default=None, min_length=1, description="Name of the placement group.")
    id: str | None = Field(default=None, pattern=r"^pg-[0-9a-z]+$", description="ID of the placement group.")

    @model_validator(mode="after")
    def _name_or_id(self) -> Self:
        if (self.name is None) == (self.id is None):
            raise problem("expected exactly one of 'name' and 'id'")
        return self


def _check_alias(alias: str) -> str:
    family, at, version = alias.partition("@")
    if not (at and family.isascii() and family.isalnum() and version):
        raise problem(f"{alias!r} is improperly formatted, must match the format 'family@version'")
    if family not in FAMILY_OF_ALIAS:
        raise problem(f"family {family!r} is not supported, must be one of {', '.join(FAMILY_OF_ALIAS)}")
    if family in _WINDOWS and version != "latest":
        raise problem(f"{alias!r}: windows families may only specify version 'latest'")
    return alias


class AMISelectorTerm(Model):
    """Machine images with these tags and this name, or this id, alias or SSM parameter."""

    alias: Annotated[str, Field(max_length=30), AfterValidator(_check_alias)] | None = Field(
        default=None,
        description="An EKS optimized image as family@version, such as al2023@latest.",
        json_schema_extra=rules(
            (
                "'alias' is improperly formatted, must match the format 'family@version'",
                "self.matches('^[a-zA-Z0-9]+@.+$')",
            ),
            (
                f"family is not supported, must be one of the following: {', '.join(map(repr, FAMILY_OF_ALIAS))}",
                f"self.split('@')[0] in {list(FAMILY_OF_ALIAS)}",
            ),
            (
                "windows families may only specify version 'latest'",
                f"self.split('@')[0] in {_WINDOWS} ? self.split('@')[1] == 'latest' : true",
            ),
        ),
    )
    tags: Tags | None = None
    id: str | None = Field(default=None, pattern=r"ami-[0-9a-z]+", description="ID of the image.")
    name: str | None = Field(default=None, description="Name of the image (not its Name tag), with wildcards.")
    owner: str | None = Field(
        default=None, description="Owner of the image: an account ID, self, amazon or aws-marketplace."
    )
    ssm_parameter: str | None = Field(
        default=None, description="Name or ARN of an SSM parameter that contains the image ID."
    )


def _terms(
    *, check: Callable[[tuple[Model, ...]], None] | None = None, of: tuple[str, ...]
) -> Callable[[tuple[Model, ...]], tuple[Model, ...]]:
    """Return a validator of a term list: each term must have one of the fields `of`; then `check`."""

    def validate(terms: tuple[Model, ...]) -> tuple[Model, ...]:
        for index, term in enumerate(terms):
            if all(getattr(term, field) is None for field in of):
                raise problem(f"term {index}: expected at least one, got none, of {', '.join(map(to_camel, of))}")
        if check is not None and terms:
            check(terms)
        return terms

    return validate


def _at_least_one(*fields: str) -> tuple[str, str]:
    return (
        f"expected at least one, got none, [{', '.join(map(repr, fields))}]",
        f"self.all(x, {' || '.join(f'has(x.{field})' for field in fields)})",
    )


def _exclusive(field: str, others: tuple[str, ...], what: str, *, every: bool = True) -> tuple[str, str]:
    quantifier = "all" if every else "exists"
    return (
        f"'{field}' is mutually exclusive, cannot be set with a combination of other fields in {what}",
        f"!self.{quantifier}(x, has(x.{field}) && ({' || '.join(f'has(x.{other})' for other in others)}))",
    )


def _refuse_if_every(field: str, others: tuple[str, ...]) -> Callable[[tuple[Model, ...]], None]:
    def check(terms: tuple[Model, ...]) -> None:
        if all(_mixes(term, field, others) for term in terms):
            raise problem(f"'{field}' is mutually exclusive with {', '.join(others)}; use separate terms")

    return check


def _mixes(term: Model, field: str, others: tuple[str, ...]) -> bool:
    return getattr(term, field) is not None and any(getattr(term, other) is not None for other in others)


def _check_security_groups(terms: tuple[Model, ...]) -> None:
    _refuse_if_every("id", ("tags", "name"))(terms)
    _refuse_if_every("name", ("tags", "id"))(terms)


def _check_amis(terms: tuple[Model, ...]) -> None:
    for term in terms:
        if _mixes(term, "id", ("alias", "tags", "name", "owner")):
            raise problem("'id' is mutually exclusive with alias, tags, name and owner; use separate terms")
        if _mixes(term, "alias", ("id", "tags", "name", "owner")):
            raise problem("'alias' is mutually exclusive with id, tags, name and owner")
    if len(terms) > 1 and any(getattr(term, "alias", None) is not None for term in terms):
        raise problem("'alias' must be the only term")


SubnetSelectorTerms = Annotated[
    tuple[SubnetSelectorTerm, ...],
    Field(
        min_length=1,
        max_length=_MAX_TERMS,
        json_schema_extra=rules(
            ("subnetSelectorTerms cannot be empty", "self.size() != 0"),
            _at_least_one("tags", "id"),
            _exclusive("id", ("tags",), "a subnet selector term"),
        ),
    ),
    AfterValidator(_terms(of=("tags", "id"), check=_refuse_if_every("id", ("tags",)))),
]
SecurityGroupSelectorTerms = Annotated[
    tuple[SecurityGroupSelectorTerm, ...],
    Field(
        min_length=1,
        max_length=_MAX_TERMS,
        json_schema_extra=rules(
            ("securityGroupSelectorTerms cannot be empty", "self.size() != 0"),
            _at_least_one("tags", "id", "name"),
            _exclusive("id", ("tags", "name"), "a security group selector term"),
            _exclusive("name", ("tags", "id"), "a security group selector term"),
        ),
    ),
    AfterValidator(_terms(of=("tags", "id", "name"), check=_check_security_groups)),
]
CapacityReservationSelectorTerms = Annotated[
    tuple[CapacityReservationSelectorTerm, ...],
    Field(
        max_length=_MAX_TERMS,
        json_schema_extra=rules(
            _at_least_one("tags", "id", "instanceMatchCriteria"),
            (
                "'id' is mutually exclusive, cannot be set along with other fields in a capacity reservation selector term",
                (
                    "self.size() == 0 || "
                    "!self.all(x, has(x.id) && (has(x.tags) || has(x.ownerID) || has(x.instanceMatchCriteria)))"
                ),
            ),
        ),
    ),
    AfterValidator(
        _terms(
            of=("tags", "id", "instance_match_criteria"),
            check=_refuse_if_every("id", ("tags", "owner_id", "instance_match_criteria")),
        )
    ),
]
AMISelectorTerms = Annotated[
    tuple[AMISelectorTerm, ...],
    Field(
        min_length=1,
        max_length=_MAX_TERMS,
        json_schema_extra=rules(
            _at_least_one("tags", "id", "name", "alias", "ssmParameter"),
            _exclusive("id", ("alias", "tags", "name", "owner"), "amiSelectorTerms", every=False),
            _exclusive("alias", ("id", "tags", "name", "owner"), "amiSelectorTerms", every=False),
            (
                "'alias' is mutually exclusive, cannot be set with a combination of other amiSelectorTerms",
                "!(self.exists(x, has(x.alias)) && self.size() != 1)",
            ),
        ),
    ),
    AfterValidator(_terms(of=("tags", "id", "name", "alias", "ssm_parameter"), check=_check_amis)),
]
