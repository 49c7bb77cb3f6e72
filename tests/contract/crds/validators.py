"""Validators of custom resources: the models, and Journeyman's and Karpenter's CRDs on a real API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from pydantic import ValidationError

from journeyman.core.api.model import Model
from tests.controlplane.caller import Caller
from tests.helpers.waiting import wait_until

JSONDict = dict[str, Any]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_REFUSED = frozenset({400, 422})  # malformed; invalid
_MERGE = "application/merge-patch+json"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_CEL_NOT_REACHED = "<nil>: "  # the API server did not evaluate the CEL rules


class ValidationOutcome(Struct, frozen=True):
    """The result of a validation: the object as it would be stored, or the errors as "field: message"."""

    causes: tuple[str, ...] = ()
    stored: JSONDict = {}

    @property
    def accepted(self) -> bool:
        """Return whether the object is valid."""
        return not self.causes


class Models:
    """The pydantic model of one kind."""

    def __init__(self, model: type[Model]) -> None:
        self._model = model

    def validate(self, obj: Mapping[str, Any]) -> ValidationOutcome:
        """Validate the object by its model."""
        try:
            self._model.model_validate(obj)
        except ValidationError as error:
            return ValidationOutcome(causes=tuple(f"{detail['loc']}: {detail['msg']}" for detail in error.errors()))
        return ValidationOutcome()

    def meaning(self, obj: Mapping[str, Any]) -> JSONDict:
        """Return the spec of a valid object with all defaults."""
        spec: JSONDict = self._model.model_validate(obj).model_dump(mode="json")["spec"]
        return spec


class Definition:
    """A CRD on an API server, in a separate API group `<prefix>.<group>`.

    So Journeyman's and Karpenter's CRDs can be installed together, also in a cluster that has either; `remove` deletes the CRD.
    """

    def __init__(self, caller: Caller, document: JSONDict, prefix: str) -> None:
        self._caller = caller
        self._document = _beside(document, prefix)
        spec = self._document["spec"]
        self._version = f"{spec['group']}/{spec['versions'][0]['name']}"
        namespace = "/namespaces/default" if spec["scope"] == "Namespaced" else ""
        self._path = f"/apis/{self._version}{namespace}/{spec['names']['plural']}"

    def install(self) -> None:
        """Install the CRD; call `wait` afterwards."""
        self._caller.do("POST", CRDS, self._document)

    def wait(self) -> None:
        """Wait until its objects are served."""
        wait_until(lambda: self._caller.call("GET", f"{self._path}?limit=1")[0] == 200, f"{self._path} is not served")

    def remove(self) -> None:
        """Delete the CRD."""
        self._caller.do("DELETE", f"{CRDS}/{self._document['metadata']['name']}")

    def validate(self, obj: Mapping[str, Any], *, strict: bool = False) -> ValidationOutcome:
        """Validate a new object. Strict validation rejects unknown fields, which are dropped otherwise."""
        return self._tried("POST", self._path, obj, "Strict" if strict else "Ignore")

    def validate_update(self, obj: Mapping[str, Any], *, subresource: str = "") -> ValidationOutcome:
        """Validate an update of the stored object of that name, or of its status."""
        path = f"{self._path}/{obj['metadata']['name']}" + (f"/{subresource}" if subresource else "")
        return self._tried("PUT", path, obj, "Ignore")

    def create(self, obj: Mapping[str, Any]) -> JSONDict:
        """Create an object; return it as stored, with its own version."""
        return {**self._caller.do("POST", self._path, self._own(obj)), "apiVersion": obj["apiVersion"]}

    def write_status(self, name: str, status: JSONDict) -> None:
        """Write a status."""
        self._caller.do("PATCH", f"{self._path}/{name}/status", {"status": status}, kind=_MERGE)

    def scale(self, name: str, replicas: int) -> tuple[int, JSONDict]:
        """Return the response to `kubectl scale`."""
        return self._caller.call("PATCH", f"{self._path}/{name}/scale", {"spec": {"replicas": replicas}}, kind=_MERGE)

    def table(self) -> JSONDict:
        """Return the table of `kubectl get`, all columns."""
        return self._caller.do("GET", self._path, accept=_TABLE)

    def discovered(self) -> JSONDict:
        """Return the kind as in the API server's discovery."""
        group, _, plural = self._path.rpartition("/")
        (found,) = (kind for kind in self._caller.do("GET", group)["resources"] if kind["name"] == plural)
        return dict(found)

    def _tried(self, method: str, path: str, obj: Mapping[str, Any], unknown: str) -> ValidationOutcome:
        query = urlencode({"dryRun": "All", "fieldValidation": unknown})
        status, answer = self._caller.call(method, f"{path}?{query}", self._own(obj))
        if status in _REFUSED:
            return ValidationOutcome(causes=_causes(answer))
        assert status in (200, 201), answer
        return ValidationOutcome(stored={**answer, "apiVersion": obj["apiVersion"]})

    def _own(self, obj: Mapping[str, Any]) -> JSONDict:
        return {**obj, "apiVersion": self._version}


def _beside(document: JSONDict, prefix: str) -> JSONDict:
    spec = document["spec"]
    group = f"{prefix}.{spec['group']}"
    metadata = {"name": f"{spec['names']['plural']}.{group}"}
    return {**document, "metadata": metadata, "spec": {**spec, "group": group}}


def _causes(status: JSONDict) -> tuple[str, ...]:
    found = [f"{cause.get('field', '')}: {cause['message']}" for cause in status.get("details", {}).get("causes", ())]
    return tuple(cause for cause in found if not cause.startswith(_CEL_NOT_REACHED)) or (str(status["message"]),)
