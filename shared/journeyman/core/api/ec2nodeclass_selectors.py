"""Selector terms of an EC2NodeClass (`nodeclass_rules`).

Restates: karpenter-provider-aws pkg/apis/v1/ec2nodeclass.go and its CRD.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from journeyman.core.api.model import Model, problem, rules
from journeyman.core.api.nodeclass_rules import (
    MAX_TERMS,
    Tags,
    alias_checker,
    alias_rules,
    at_least_one_rule,
    exclusive_rule,
    only_alias_rule,
    reject_alias_beside_others,
    reject_if_any,
    reject_if_every,
    terms_checker,
)

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


_check_family = alias_checker(FAMILY_OF_ALIAS)


def _check_alias(alias: str) -> str:
    family, _, version = _check_family(alias).partition("@")
    if family in _WINDOWS and version != "latest":
        raise problem(f"{alias!r}: windows families may only specify version 'latest'")
    return alias


class AMISelectorTerm(Model):
    """Machine images with these tags and this name, or this id, alias or SSM parameter."""

    alias: Annotated[str, Field(max_length=30), AfterValidator(_check_alias)] | None = Field(
        default=None,
        description="An EKS optimized image as family@version, such as al2023@latest.",
        json_schema_extra=rules(
            *alias_rules(FAMILY_OF_ALIAS),
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


SubnetSelectorTerms = Annotated[
    tuple[SubnetSelectorTerm, ...],
    Field(
        min_length=1,
        max_length=MAX_TERMS,
        json_schema_extra=rules(
            ("subnetSelectorTerms cannot be empty", "self.size() != 0"),
            at_least_one_rule("tags", "id"),
            exclusive_rule("id", ("tags",), "a subnet selector term"),
        ),
    ),
    AfterValidator(terms_checker(reject_if_every("id", ("tags",)), of=("tags", "id"))),
]
SecurityGroupSelectorTerms = Annotated[
    tuple[SecurityGroupSelectorTerm, ...],
    Field(
        min_length=1,
        max_length=MAX_TERMS,
        json_schema_extra=rules(
            ("securityGroupSelectorTerms cannot be empty", "self.size() != 0"),
            at_least_one_rule("tags", "id", "name"),
            exclusive_rule("id", ("tags", "name"), "a security group selector term"),
            exclusive_rule("name", ("tags", "id"), "a security group selector term"),
        ),
    ),
    AfterValidator(
        terms_checker(
            reject_if_every("id", ("tags", "name")),
            reject_if_every("name", ("tags", "id")),
            of=("tags", "id", "name"),
        )
    ),
]
CapacityReservationSelectorTerms = Annotated[
    tuple[CapacityReservationSelectorTerm, ...],
    Field(
        max_length=MAX_TERMS,
        json_schema_extra=rules(
            at_least_one_rule("tags", "id", "instanceMatchCriteria"),
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
        terms_checker(
            reject_if_every("id", ("tags", "owner_id", "instance_match_criteria")),
            of=("tags", "id", "instance_match_criteria"),
        )
    ),
]
AMISelectorTerms = Annotated[
    tuple[AMISelectorTerm, ...],
    Field(
        min_length=1,
        max_length=MAX_TERMS,
        json_schema_extra=rules(
            at_least_one_rule("tags", "id", "name", "alias", "ssmParameter"),
            exclusive_rule("id", ("alias", "tags", "name", "owner"), "amiSelectorTerms", every=False),
            exclusive_rule("alias", ("id", "tags", "name", "owner"), "amiSelectorTerms", every=False),
            only_alias_rule("amiSelectorTerms"),
        ),
    ),
    AfterValidator(
        terms_checker(
            reject_if_any("id", ("alias", "tags", "name", "owner")),
            reject_if_any("alias", ("id", "tags", "name", "owner")),
            reject_alias_beside_others,
            of=("tags", "id", "name", "alias", "ssm_parameter"),
        )
    ),
]
