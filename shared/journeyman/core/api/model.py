"""What every custom resource model shares: field names, strictness, `parse`, and the CRD-only facts of a field.

Attributes are snake_case, the wire is camelCase; both spellings are accepted on input. Fields we do not know are
ignored, so that a manifest of a newer version still loads; a `null` reads as missing, as it does on the API server.
Where the core works with a msgspec Struct (`objects`), the field *is* that Struct: a pydantic twin checks the input and
describes the schema, `Checked` turns what it accepted into the Struct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from journeyman.core.api import duration, quantity, resources
from journeyman.core.api.objects import ObjectMeta, QuantityText
from journeyman.errors import ConfigurationError, InvalidObjectError

M = TypeVar("M", bound="Model")

_SHOWN_ERRORS = 3


class Model(BaseModel):
    """Base of all custom resource models."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="ignore",
        frozen=True,
        # A function that reads one kind does not pay for the others; so no field's default is a model *instance*
        # (which would build its schema at import): `default_factory` makes it when it is needed.
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_missing(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: item for key, item in value.items() if item is not None}
        return value

    def to_wire(self) -> dict[str, Any]:
        """The JSON form: camelCase keys, missing fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Checked:
    """Annotates a Struct field: input is checked by a pydantic twin and kept as the Struct.

    The twin's attributes must be the Struct's (or a superset, which is dropped).
    """

    def __init__(self, twin: type[Model]) -> None:
        self.twin = twin

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        def as_input(value: Any) -> Any:
            return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value

        def as_struct(checked: Model) -> Any:
            return msgspec.convert(checked.to_wire(), source)

        return core_schema.no_info_before_validator_function(
            as_input,
            core_schema.no_info_after_validator_function(as_struct, handler.generate_schema(self.twin)),
            serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins),
        )


class Converted:
    """Annotates a Struct field whose input msgspec checks by itself.

    `schema` is its JSON schema; `to_wire` writes it, where the Struct's own encoding (defaults left out) will not do.
    """

    def __init__(self, schema: Mapping[str, Any], to_wire: Callable[[Any], Any] = msgspec.to_builtins) -> None:
        self.schema = schema
        self.to_wire = to_wire

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        def convert(value: Any) -> Any:
            if isinstance(value, source):
                return value
            try:
                return msgspec.convert(_without_nulls(value), source)
            except msgspec.ValidationError as error:
                raise PydanticCustomError("invalid_value", "{problem}", {"problem": str(error)}) from error

        return core_schema.no_info_plain_validator_function(
            convert, serialization=core_schema.plain_serializer_function_ser_schema(self.to_wire)
        )

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return dict(self.schema)


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: item for key, item in value.items() if item is not None}


def crd(**facts: Any) -> dict[str, Any]:
    """Facts of a field or model that only its CRD schema carries; underscores become dashes.

    They are laid over the generated schema last. `crd(x_kubernetes_list_type="atomic")`, say.
    """
    return {"x-crd": {key.replace("_", "-") if key.startswith("x_") else key: fact for key, fact in facts.items()}}


def rules(*pairs: tuple[str, str], **facts: Any) -> dict[str, Any]:
    """CEL validation rules for the CRD, each (message, rule), and other facts as `crd` takes them."""
    return crd(x_kubernetes_validations=[{"message": message, "rule": rule} for message, rule in pairs], **facts)


def problem(text: str) -> PydanticCustomError:
    """A validation error that reads as written, without pydantic's "Value error" in front."""
    return PydanticCustomError("invalid_value", "{problem}", {"problem": text})


def _check_duration(text: str) -> str:
    try:
        duration.parse_duration(text)
    except ConfigurationError as error:
        raise problem(error.message) from error
    return text


def _check_nillable_duration(text: str) -> str:
    return text if text == duration.NEVER else _check_duration(text)


def _check_resources(texts: dict[str, QuantityText]) -> dict[str, QuantityText]:
    try:
        resources.to_resources(texts, round_up=True)
    except ConfigurationError as error:
        raise problem(error.message) from error
    return texts


Int = Annotated[int, Strict()]
Bool = Annotated[bool, Strict()]

Duration = Annotated[
    str, AfterValidator(_check_duration), Field(json_schema_extra=crd(pattern=duration.PATTERN, maxLength=64))
]
"""Text such as `1h30m`; `duration.parse_duration` gives the time."""

NillableDuration = Annotated[
    str,
    AfterValidator(_check_nillable_duration),
    Field(json_schema_extra=crd(pattern=duration.NILLABLE_PATTERN, maxLength=64)),
]
"""The same or `Never`; `duration.parse_nillable_duration` gives the time or None."""

ResourceTexts = Annotated[
    dict[str, Annotated[str, Strict()] | Annotated[int, Strict()] | Annotated[float, Strict()]],
    AfterValidator(_check_resources),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": quantity.PATTERN,
                "x-kubernetes-int-or-string": True,
            },
        }
    ),
]
"""Quantities by resource name, as text or number; `resources.to_resources` gives exact amounts."""

Metadata = Annotated[ObjectMeta, Converted({"type": "object"})]
"""`metadata`, as the Struct that all objects share."""


def parse(model: type[M], raw: Mapping[str, Any]) -> M:
    """The object as its model.

    Args:
        model: NodePool, NodeClaim, EC2NodeClass, NodeDisruption, OfferingState.
        raw: The object as the API server or a manifest gives it.

    Raises:
        InvalidObjectError: It does not validate; one line says which object, which field, what is wrong, what to do.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        kind, name = model.__name__, _name_of(raw)
        faults = [_describe(detail) for detail in _innermost(error.errors(include_url=False))]
        shown = "; ".join(faults[:_SHOWN_ERRORS])
        more = f"; and {len(faults) - _SHOWN_ERRORS} more" if len(faults) > _SHOWN_ERRORS else ""
        raise InvalidObjectError(
            f"{kind} {name} does not validate: {shown}{more}. Correct it and apply it again", kind=kind, name=name
        ) from error


def _name_of(raw: Any) -> str:
    metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return str(name) if name else "(without a name)"


def _innermost(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without the errors that a part's own error brings with it: a list that came out too short, say."""
    paths = [detail["loc"] for detail in details]
    return [d for d in details if not any(len(p) > len(d["loc"]) and p[: len(d["loc"])] == d["loc"] for p in paths)]


def _describe(detail: ErrorDetails) -> str:
    path = ""
    for part in detail["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    if detail["type"] == "missing":
        return f"{path}: required, but missing"
    shown = repr(detail["input"])
    given = f" (given: {shown})" if len(shown) <= 80 and detail["type"] != "invalid_value" else ""
    return f"{path}: {detail['msg']}{given}" if path else f"{detail['msg']}"
