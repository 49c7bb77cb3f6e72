"""Base of the custom resource models: field names, strictness, `parse`, and schema keywords for the CRD only.

Attributes are snake_case, JSON is camelCase; input may have either. Unknown fields are ignored, so that a manifest of a
newer version is valid; `null` means missing, as on the API server. Where the core uses a msgspec Struct (`objects`), the
field is that Struct: a pydantic model of the same fields validates the input and generates the schema (`ValidatedBy`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from journeyman.core.api import duration, quantity
from journeyman.core.api.objects import ObjectMeta, QuantityText
from journeyman.errors import ConfigurationError, InvalidObjectError, InvalidQuantityError

M = TypeVar("M", bound="Model")

_SHOWN_ERRORS = 3
_EXACT: Final = 2**53  # from here on floats skip integers
_INTEGERS: Final = 2**63  # from here on an integer is read as a float
_HUGE: Final = 10**300
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)
_SECOND: Final = 17  # position of the seconds in a time's text


class Model(BaseModel):
    """Base of all custom resource models."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="ignore",
        frozen=True,
        # Validators are built when a kind is first used. Defaults are never model instances, which would build the
        # validators at import: `default_factory` creates them.
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_missing(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: _as_json(item) for key, item in value.items() if item is not None}
        return value

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON form: camelCase keys, without missing fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ValidatedBy:
    """Annotates a Struct field: a pydantic model validates the input, and the value is the Struct.

    The model must have the Struct's attributes; further ones are dropped.
    """

    def __init__(self, model: type[Model]) -> None:
        self.model = model

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        def as_input(value: Any) -> Any:
            return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value

        def as_struct(checked: Model) -> Any:
            return msgspec.convert(checked.to_wire(), source)

        return core_schema.no_info_before_validator_function(
            as_input,
            core_schema.no_info_after_validator_function(as_struct, handler.generate_schema(self.model)),
            serialization=core_schema.plain_serializer_function_ser_schema(msgspec.to_builtins),
        )


class Converted:
    """Annotates a Struct field whose input msgspec validates.

    `schema` is its JSON schema; `to_wire` encodes it, if the Struct's own encoding (without defaults) is not right.
    """

    def __init__(self, schema: Mapping[str, Any], to_wire: Callable[[Any], Any] = msgspec.to_builtins) -> None:
        self.schema = schema
        self.to_wire = to_wire

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        def convert(value: Any) -> Any:
            if isinstance(value, source):
                return value
            try:
                return msgspec.convert(_as_json(value), source)
            except msgspec.ValidationError as error:
                raise PydanticCustomError("invalid_value", "{problem}", {"problem": str(error)}) from error

        return core_schema.no_info_plain_validator_function(
            convert, serialization=core_schema.plain_serializer_function_ser_schema(self.to_wire)
        )

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return dict(self.schema)


def _as_json(value: Any) -> Any:
    """Return a field's value as the API server reads it: no nulls in maps, 2.0 is an integer, 2**63 is a float."""
    if isinstance(value, str):  # most values; `isinstance(…, Mapping)` is slow
        return value
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items() if item is not None}
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, int) and not -_INTEGERS <= value < _INTEGERS:
        return float(min(value, _HUGE) if value > 0 else max(value, -_HUGE))
    return value


def crd(**facts: Any) -> dict[str, Any]:
    """Return schema keywords for the CRD only, such as `crd(x_kubernetes_list_type="atomic")`; underscores become dashes.

    They override the generated schema.
    """
    return {"x-crd": {key.replace("_", "-") if key.startswith("x_") else key: fact for key, fact in facts.items()}}


def rules(*pairs: tuple[str, str], **facts: Any) -> dict[str, Any]:
    """Return CEL validation rules for the CRD, each (message, rule), and further keywords as in `crd`."""
    return crd(x_kubernetes_validations=[{"message": message, "rule": rule} for message, rule in pairs], **facts)


def problem(text: str) -> PydanticCustomError:
    """Return a validation error with this text, without pydantic's prefix "Value error"."""
    return PydanticCustomError("invalid_value", "{problem}", {"problem": text})


def _check_duration(text: str) -> str:
    try:
        duration.parse_duration(text)
    except ConfigurationError as error:
        raise problem(error.message) from error
    return text


def _check_nillable_duration(text: str) -> str:
    return text if text == duration.NEVER else _check_duration(text)


def _check_time(value: Any) -> Any:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not _TIME.fullmatch(value) or value[_SECOND : _SECOND + 2] == "60":
        raise problem(f"{value!r} is not a time: write date, time and zone as in 2026-01-31T12:30:00Z")
    return value.upper()


def _check_amount(value: Any) -> QuantityText:
    """Return a quantity that is not negative, as text or integer."""
    if isinstance(value, float):
        raise problem(f"{value} is not a whole number of 64 bits; write it as text, in quotes")
    try:
        amount = quantity.parse(value)
    except InvalidQuantityError as error:
        raise problem(error.message) from error
    if amount.nano < 0 or str(value).startswith("-"):
        raise problem(f"{value!r} is negative; give zero or more")
    return value if isinstance(value, int) else str(value)


Int = Annotated[int, Strict()]
Bool = Annotated[bool, Strict()]

MAX_INT32: Final = 2**31 - 1

Time = Annotated[AwareDatetime, BeforeValidator(_check_time)]
"""RFC 3339 with a time zone, as the API server accepts it."""

_READABLE: Final = "duration(self) >= duration('0s')"
_TOO_LONG: Final = "the maximum is 2562047h47m16s"

Duration = Annotated[
    str,
    AfterValidator(_check_duration),
    Field(json_schema_extra=rules((_TOO_LONG, _READABLE), pattern=duration.PATTERN)),
]
"""Text such as `1h30m`; `duration.parse_duration` returns the timedelta."""

NillableDuration = Annotated[
    str,
    AfterValidator(_check_nillable_duration),
    Field(
        json_schema_extra=rules(
            (_TOO_LONG, f"self == '{duration.NEVER}' || {_READABLE}"),
            pattern=duration.NILLABLE_PATTERN,
        )
    ),
]
"""A `Duration` or `Never`; `duration.parse_nillable_duration` returns the timedelta or None."""

ResourceTexts = Annotated[
    dict[str, Annotated[QuantityText, PlainValidator(_check_amount)]],
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
"""Quantities by resource name, as text or number; `resources.to_resources` returns exact amounts. CRDs admit negative ones."""

Metadata = Annotated[ObjectMeta, Converted({"type": "object"})]
"""`metadata`, as the Struct of all objects."""


def parse(model: type[M], raw: Mapping[str, Any]) -> M:
    """Return an object as its model.

    Args:
        model: Such as NodePool, EC2NodeClass or NodeDisruption.
        raw: The object as the API server or a manifest has it.

    Raises:
        InvalidObjectError: The object is invalid; the message names the object, the field, the error and what to do.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        kind, name = str(model.model_fields["kind"].default), _name_of(raw)
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
    """Return the errors without those that follow from an error in a nested field."""
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
