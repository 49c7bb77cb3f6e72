"""Implements the in-process account's images, and the Systems Manager parameters with their ids."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from msgspec import Struct, field

from journeyman_simulator.cloud_rules.event_delivery import iso
from journeyman_simulator.cloud_rules.published_images import PublishedImage
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.in_process_account.service_client import (
    PAGING,
    ServiceOperation,
    ServiceOperations,
    ServiceRequest,
    paged,
    selected,
    tag_pairs,
    to_pairs,
)

_PARAMETERS_PER_CALL: Final = 10  # ssm:GetParameters, and a page of ssm:GetParametersByPath
_PARAMETER_CHARACTERS: Final = 4096


class SimulatedImage(Struct, kw_only=True, eq=False):
    """A machine image."""

    id: str
    name: str
    architecture: str
    owner: str
    created: str
    tags: dict[str, str] = field(default_factory=dict)


class SimulatedImages:
    """The images that the account can use, and the parameters with their ids."""

    def __init__(self, time: ServiceTime, account: str) -> None:
        self._time = time
        self._account = account
        self._serial = count(1)
        self.known: dict[str, SimulatedImage] = {}
        self.parameters: dict[str, str] = {}

    def publish(self, image: PublishedImage) -> str:
        """Publish an image, set its Systems Manager parameters, and return its id."""
        id_ = f"ami-{next(self._serial):017x}"
        self.known[id_] = SimulatedImage(
            id=id_,
            name=image.name,
            architecture=image.architecture,
            owner=image.owner,
            created=iso(self._time.now()),
        )
        self.parameters.update(dict.fromkeys(image.parameters, id_))
        return id_

    def require(self, image_id: str) -> SimulatedImage:
        """Return the image with that id. Raises ServiceError if it does not exist."""
        if image_id not in self.known:
            raise ServiceError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
        return self.known[image_id]

    def ec2_operations(self) -> ServiceOperations:
        """Return EC2's operations."""
        accepts = ("Filters", "ImageIds", "IncludeDeprecated", "Owners", *PAGING)
        return {"DescribeImages": ServiceOperation(self._describe, accepts=accepts)}

    def ssm_operations(self) -> ServiceOperations:
        """Return Systems Manager's operations."""
        return {
            "GetParameters": ServiceOperation(self._get_parameters, requires=("Names",)),
            "GetParameter": ServiceOperation(self._get_parameter, requires=("Name",)),
            "GetParametersByPath": ServiceOperation(self._get_parameters_by_path, requires=("Path",), accepts=PAGING),
            "PutParameter": ServiceOperation(self._put_parameter, requires=("Name", "Value", "Type")),
        }

    def _describe(self, request: ServiceRequest) -> dict[str, Any]:
        known = [self.require(id_) for id_ in request.get("ImageIds") or self.known]
        owners = set(request.get("Owners") or ())
        found = selected(known, request.get("Filters", ()), _READERS)
        described = [self._described(i) for i in found if not owners or owners & {i.owner, self._alias(i)}]
        return paged("Images", described, request)

    def _described(self, image: SimulatedImage) -> dict[str, Any]:
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

    def _alias(self, image: SimulatedImage) -> str:
        return "self" if image.owner == self._account else "amazon"

    def _get_parameters(self, request: ServiceRequest) -> dict[str, Any]:
        names = request["Names"]
        if len(names) > _PARAMETERS_PER_CALL:
            raise ServiceError("ValidationException", "Member must have length less than or equal to 10")
        return {
            "Parameters": [_parameter(name, self.parameters) for name in names if name in self.parameters],
            "InvalidParameters": [name for name in names if name not in self.parameters],
        }

    def _get_parameter(self, request: ServiceRequest) -> dict[str, Any]:
        if request["Name"] not in self.parameters:
            raise ServiceError("ParameterNotFound", f"Parameter {request['Name']} not found.")
        return {"Parameter": _parameter(request["Name"], self.parameters)}

    def _get_parameters_by_path(self, request: ServiceRequest) -> dict[str, Any]:
        """Return the parameters directly below the path, ten per page."""
        parent = request["Path"].rstrip("/")
        names = sorted(name for name in self.parameters if name.rpartition("/")[0] == parent)
        found = [_parameter(name, self.parameters) for name in names]
        return paged("Parameters", found, request, _PARAMETERS_PER_CALL)

    def _put_parameter(self, request: ServiceRequest) -> dict[str, Any]:
        if len(request["Value"]) > _PARAMETER_CHARACTERS:
            raise ServiceError(
                "ValidationException", "Standard tier parameters support a maximum parameter value of 4096"
            )
        self.parameters[request["Name"]] = request["Value"]
        return {"Version": 1, "Tier": "Standard"}


def _parameter(name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    return {"Name": name, "Type": "String", "Value": parameters[name], "DataType": "aws:ec2:image", "Version": 1}


_READERS = {
    "image-id": lambda image: [image.id],
    "name": lambda image: [image.name],
    "state": lambda _: ["available"],
    "architecture": lambda image: [image.architecture],
    "tag": lambda image: tag_pairs(image.tags),
}
