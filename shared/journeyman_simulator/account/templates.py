"""The simulated account's launch templates and their versions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import count
from typing import Any

from msgspec import Struct

from journeyman_simulator.account.asking import (
    PAGING,
    Ask,
    Operation,
    Operations,
    paged,
    selected,
    tag_pairs,
    tags_given,
    to_pairs,
)
from journeyman_simulator.aws.refusal import RefusedError
from journeyman_simulator.aws.timekeeper import Timekeeper


class Template(Struct, kw_only=True, eq=False):
    """A launch template; its versions count from 1, and the first is the default."""

    id: str
    name: str
    created: datetime
    tags: dict[str, str]
    versions: list[Mapping[str, Any]]
    deleted: datetime | None = None

    def was_there(self, moment: datetime) -> bool:
        """Whether it existed then."""
        return self.created <= moment and (self.deleted is None or self.deleted > moment)

    def number_of(self, version: str) -> int:
        """Which one `$Latest`, `$Default` or a number means. Raises RefusedError if there is none."""
        number = {"$Latest": len(self.versions), "$Default": 1}.get(version) or int(version)
        if not 1 <= number <= len(self.versions):
            message = f"Could not find launch template version {version} of launch template {self.id}"
            raise RefusedError("InvalidLaunchTemplateId.VersionNotFound", message)
        return number


class Templates:
    """All templates, deleted ones included, oldest first."""

    def __init__(self, time: Timekeeper) -> None:
        self._time = time
        self._serial = count(1)
        self._all: list[Template] = []

    def find(self, specification: Mapping[str, Any]) -> Template:
        """The template that an id or a name stands for. Raises RefusedError if there is none."""
        id_, name = specification.get("LaunchTemplateId"), specification.get("LaunchTemplateName")
        for template in self._all:
            if template.deleted is None and (template.id == id_ if id_ else template.name == name):
                return template
        if id_:
            message = f"The specified launch template, with template ID {id_}, does not exist."
            raise RefusedError("InvalidLaunchTemplateId.NotFound", message)
        message = f"The specified launch template, with template name {name}, does not exist."
        raise RefusedError("InvalidLaunchTemplateName.NotFoundException", message)

    def operations(self) -> Operations:
        """What EC2 answers from here."""
        naming = ("LaunchTemplateId", "LaunchTemplateName")
        create = ("LaunchTemplateName", "LaunchTemplateData")
        return {
            "CreateLaunchTemplate": Operation(self._create, requires=create, accepts=("TagSpecifications",)),
            "CreateLaunchTemplateVersion": Operation(self._add, requires=("LaunchTemplateData",), accepts=naming),
            "DeleteLaunchTemplate": Operation(self._delete, accepts=naming),
            "DescribeLaunchTemplates": Operation(self._describe, accepts=("Filters", *PAGING)),
            "DescribeLaunchTemplateVersions": Operation(
                self._describe_versions, accepts=(*naming, "Versions", *PAGING)
            ),
        }

    def _create(self, ask: Ask) -> dict[str, Any]:
        name = ask["LaunchTemplateName"]
        if any(template.name == name and template.deleted is None for template in self._all):
            message = f"Launch template name already in use: {name}."
            raise RefusedError("InvalidLaunchTemplateName.AlreadyExistsException", message)
        template = Template(
            id=f"lt-{next(self._serial):017x}",
            name=name,
            created=self._time.now(),
            tags=tags_given(ask, "launch-template"),
            versions=[ask["LaunchTemplateData"]],
        )
        self._all.append(template)
        return {"LaunchTemplate": _described(template)}

    def _add(self, ask: Ask) -> dict[str, Any]:
        template = self.find(ask.given)
        template.versions.append(ask["LaunchTemplateData"])
        return {"LaunchTemplateVersion": _described_version(template, len(template.versions))}

    def _delete(self, ask: Ask) -> dict[str, Any]:
        template = self.find(ask.given)
        template.deleted = self._time.now()
        return {"LaunchTemplate": _described(template)}

    def _describe(self, ask: Ask) -> dict[str, Any]:
        known = [template for template in self._all if template.was_there(ask.as_of)]
        found = selected(known, ask.get("Filters", ()), _READERS)
        return paged("LaunchTemplates", [_described(template) for template in found], ask)

    def _describe_versions(self, ask: Ask) -> dict[str, Any]:
        template = self.find(ask.given)
        every = [str(number) for number in range(1, len(template.versions) + 1)]
        numbers = [template.number_of(version) for version in ask.get("Versions") or every]
        return paged("LaunchTemplateVersions", [_described_version(template, number) for number in numbers], ask)


_READERS = {
    "launch-template-name": lambda template: [template.name],
    "tag": lambda template: tag_pairs(template.tags),
}


def _described(template: Template) -> dict[str, Any]:
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "CreateTime": template.created,
        "DefaultVersionNumber": 1,
        "LatestVersionNumber": len(template.versions),
        "Tags": to_pairs(template.tags),
    }


def _described_version(template: Template, number: int) -> dict[str, Any]:
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "VersionNumber": number,
        "DefaultVersion": number == 1,
        "LaunchTemplateData": template.versions[number - 1],
    }
