"""The simulated account's images, and the Systems Manager parameters that lead to them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from journeyman_simulator.account.asking import (
    PAGING,
    Ask,
    Operation,
    Operations,
    paged,
    selected,
    tag_pairs,
    to_pairs,
)
from journeyman_simulator.aws.eks_images import PublishedImage
from journeyman_simulator.aws.refusal import RefusedError
from journeyman_simulator.aws.shaping import iso
from journeyman_simulator.aws.timekeeper import Timekeeper

_PARAMETERS_PER_CALL: Final = 10  # ssm:GetParameters


class Image(Struct, kw_only=True, eq=False):
    """A machine image."""

    id: str
    name: str
    architecture: str
    owner: str
    created: str
    tags: dict[str, str] = field(default_factory=dict)


class Images:
    """All that the account may use, and where their ids are published."""

    def __init__(self, time: Timekeeper, account: str) -> None:
        self._time = time
        self._account = account
        self._serial = count(1)
        self.known: dict[str, Image] = {}
        self.parameters: dict[str, str] = {}

    def publish(self, image: PublishedImage) -> str:
        """Let somebody publish an image; its parameters lead to it from now on. Returns its id."""
        id_ = f"ami-{next(self._serial):017x}"
        self.known[id_] = Image(
            id=id_,
            name=image.name,
            architecture=image.architecture,
            owner=image.owner,
            created=iso(self._time.now()),
        )
        self.parameters.update(dict.fromkeys(image.parameters, id_))
        return id_

    def require(self, image_id: str) -> Image:
        """The image. Raises RefusedError if there is none."""
        if image_id not in self.known:
            raise RefusedError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
        return self.known[image_id]

    def ec2_operations(self) -> Operations:
        """Of EC2."""
        accepts = ("Filters", "ImageIds", "IncludeDeprecated", "Owners", *PAGING)
        return {"DescribeImages": Operation(self._describe, accepts=accepts)}

    def ssm_operations(self) -> Operations:
        """Of Systems Manager."""
        return {
            "GetParameters": Operation(self._get_parameters, requires=("Names",)),
            "GetParameter": Operation(self._get_parameter, requires=("Name",)),
        }

    def _describe(self, ask: Ask) -> dict[str, Any]:
        known = [self.require(id_) for id_ in ask.get("ImageIds") or self.known]
        owners = set(ask.get("Owners") or ())
        found = selected(known, ask.get("Filters", ()), _READERS)
        told = [self._described(i) for i in found if not owners or owners & {i.owner, self._alias(i)}]
        return paged("Images", told, ask)

    def _described(self, image: Image) -> dict[str, Any]:
        return {
            "ImageId": image.id,
            "Name": image.name,
            "Architecture": image.architecture,
            "OwnerId": image.owner,
            "CreationDate": image.created,
            "State": "available",
            "RootDeviceName": "/dev/xvda",
            "Tags": to_pairs(image.tags),
        }

    def _alias(self, image: Image) -> str:
        return "self" if image.owner == self._account else "amazon"

    def _get_parameters(self, ask: Ask) -> dict[str, Any]:
        names = ask["Names"]
        if len(names) > _PARAMETERS_PER_CALL:
            raise RefusedError("ValidationException", "Member must have length less than or equal to 10")
        return {
            "Parameters": [_parameter(name, self.parameters) for name in names if name in self.parameters],
            "InvalidParameters": [name for name in names if name not in self.parameters],
        }

    def _get_parameter(self, ask: Ask) -> dict[str, Any]:
        if ask["Name"] not in self.parameters:
            raise RefusedError("ParameterNotFound", f"Parameter {ask['Name']} not found.")
        return {"Parameter": _parameter(ask["Name"], self.parameters)}


def _parameter(name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    return {"Name": name, "Type": "String", "Value": parameters[name], "DataType": "aws:ec2:image", "Version": 1}


_READERS = {
    "image-id": lambda image: [image.id],
    "name": lambda image: [image.name],
    "state": lambda _: ["available"],
    "architecture": lambda image: [image.architecture],
    "tag": lambda image: tag_pairs(image.tags),
}
