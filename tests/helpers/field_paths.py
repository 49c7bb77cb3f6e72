"""The fields of a model of a custom resource, for tests that each of them has an effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel


def field_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the path of each field of a model that is not a model itself, as manifests write it."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        inner = next(_models_in(field.annotation), None)
        if inner is None:
            yield path
        else:
            yield from field_paths(inner, f"{path}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
