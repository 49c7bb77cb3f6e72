"""Sets and validates object metadata (names, UIDs, versions, deletion), and implements JSON merge patch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from journeyman.core.api.duration import seconds, time_after
from journeyman_simulator.apiserver.api_errors import ErrorCause

JSON = Mapping[str, Any]

SYSTEM_FIELDS: Final = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
)
"""Metadata fields that the server sets and clients cannot change."""
_IMMUTABLE: Final = ("deletionTimestamp", "deletionGracePeriodSeconds")

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NAME_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_MAX_ANNOTATION_BYTES: Final = 256 * 1024
_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # those of k8s.io/apimachinery/pkg/util/rand
_SUFFIX_LENGTH: Final = 5
_MULTIPLIER: Final = 8_191_159  # coprime with 27**5, so that consecutive serials give different, dissimilar suffixes


def text(moment: datetime) -> str:
    """Return a time in the format of `metav1.Time`: RFC 3339 in UTC with whole seconds."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def uid(serial: int) -> str:
    """Return a UID that the serial number determines."""
    return str(UUID(int=(0x4A << 120) | (4 << 76) | (2 << 62) | serial))


def generated_name(prefix: str, serial: int) -> str:
    """Return the name for a `generateName`: the prefix and five characters."""
    number = serial * _MULTIPLIER % len(_SUFFIX_LETTERS) ** _SUFFIX_LENGTH
    letters = []
    for _ in range(_SUFFIX_LENGTH):
        number, digit = divmod(number, len(_SUFFIX_LETTERS))
        letters.append(_SUFFIX_LETTERS[digit])
    return prefix + "".join(letters)


def with_metadata(obj: JSON, **fields: Any) -> dict[str, Any]:
    """Return the object with these metadata fields; None removes a field."""
    metadata = {**obj["metadata"], **fields}
    return {**obj, "metadata": {key: value for key, value in metadata.items() if value is not None}}


def is_deleting(obj: JSON) -> bool:
    """Whether the object has a deletionTimestamp."""
    return "deletionTimestamp" in obj["metadata"]


def deletion_is_complete(obj: JSON) -> bool:
    """Whether neither a finalizer nor a grace period delays the deletion."""
    meta = obj["metadata"]
    return is_deleting(obj) and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")


def marked_for_deletion(obj: JSON, now: datetime, grace_seconds: int) -> dict[str, Any]:
    """Return the object with a deletionTimestamp at the end of its grace period.

    Restates: k8s.io/apiserver `pkg/registry/rest/delete.go` `BeforeDelete`: a later deletion can shorten the period but
    not lengthen it; the first deletion increases the generation.
    """
    meta = obj["metadata"]
    if not is_deleting(obj):
        return with_metadata(
            obj,
            deletionTimestamp=text(time_after(now, seconds(grace_seconds))),
            deletionGracePeriodSeconds=grace_seconds,
            generation=meta["generation"] + 1 if "generation" in meta else None,
        )
    current = meta.get("deletionGracePeriodSeconds", 0)
    if grace_seconds >= current:
        return dict(obj)
    end = datetime.fromisoformat(meta["deletionTimestamp"].replace("Z", "+00:00"))
    return with_metadata(
        obj,
        deletionTimestamp=text(end - timedelta(seconds=current - grace_seconds)),
        deletionGracePeriodSeconds=grace_seconds,
    )


def immutable_field_errors(requested: JSON, old: JSON) -> Iterable[ErrorCause]:
    """Yield the errors of a write that changes immutable metadata; changes of other server-set fields are ignored.

    Restates: k8s.io/apimachinery `pkg/api/validation/objectmeta.go` `ValidateObjectMetaAccessorUpdate`.
    """
    for field in _IMMUTABLE:
        value = requested.get(field)
        if value is not None and not is_deleting(old):
            yield ErrorCause(f"metadata.{field}", f"Invalid value: {json.dumps(value)}: field is immutable")


def metadata_errors(new: JSON, old: JSON | None, *, custom: bool) -> Iterable[ErrorCause]:
    """Yield the errors of an object's metadata; the finalizers of a custom resource need no domain.

    Restates: k8s.io/apimachinery `pkg/api/validation/objectmeta.go` `ValidateObjectMeta`; kubernetes
    `pkg/apis/core/validation/validation.go` `ValidateObjectMeta`.
    """
    meta = new["metadata"]
    name = meta.get("name")
    if not name:
        yield ErrorCause("metadata.name", "Required value: name or generateName is required")
    elif len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        yield ErrorCause("metadata.name", f'Invalid value: "{name}": {_SUBDOMAIN_RULE}')
    yield from _label_errors(meta.get("labels") or {})
    yield from _annotation_errors(meta.get("annotations") or {})
    yield from _owner_errors(meta.get("ownerReferences") or ())
    yield from _finalizer_errors(meta.get("finalizers") or (), custom=custom)
    if old is not None and is_deleting(old):
        yield from _added_finalizer_errors(meta.get("finalizers") or (), old["metadata"].get("finalizers") or ())


@lru_cache(maxsize=4096)
def qualified_name_problem(key: str) -> str:
    """Return why a label, annotation, taint or finalizer name is invalid; empty if it is valid."""
    prefix, slash, name = key.rpartition("/")
    is_valid = len(name) <= 63 and _NAME.fullmatch(name) and (not slash or _SUBDOMAIN.fullmatch(prefix))
    return "" if is_valid else f'Invalid value: "{key}": {_NAME_RULE}'


@lru_cache(maxsize=4096)
def label_value_problem(value: str) -> str:
    """Return why a label value is invalid; empty if it is valid."""
    if len(value) > 63:
        return f'Invalid value: "{value}": must be no more than 63 characters'
    return "" if not value or _NAME.fullmatch(value) else f'Invalid value: "{value}": {_LABEL_RULE}'


def _label_errors(labels: JSON) -> Iterable[ErrorCause]:
    for key, value in labels.items():
        if not isinstance(value, str):
            yield ErrorCause(f"metadata.labels.{key}", f"Invalid value: {value!r}: must be a string")
        else:
            problems = (qualified_name_problem(key), label_value_problem(value))
            yield from (ErrorCause("metadata.labels", problem) for problem in problems if problem)


def _annotation_errors(annotations: JSON) -> Iterable[ErrorCause]:
    for key, value in annotations.items():
        if not isinstance(value, str):
            yield ErrorCause(f"metadata.annotations.{key}", f"Invalid value: {value!r}: must be a string")
        elif problem := qualified_name_problem(key.lower()):
            yield ErrorCause("metadata.annotations", problem)
    if sum(len(key) + len(str(value)) for key, value in annotations.items()) > _MAX_ANNOTATION_BYTES:
        yield ErrorCause("metadata.annotations", f"Too long: may not be more than {_MAX_ANNOTATION_BYTES} bytes")


def _owner_errors(owners: Iterable[JSON]) -> Iterable[ErrorCause]:
    owners, controllers = list(owners), []
    for owner in owners:
        missing = [field for field in ("apiVersion", "kind", "name", "uid") if not owner.get(field)]
        for field in missing:
            what = "version must" if field == "apiVersion" else "must"
            yield ErrorCause(f"metadata.ownerReferences.{field}", f'Invalid value: "": {what} not be empty')
        controllers += [f"{owner.get('kind')}/{owner.get('name')}"] if owner.get("controller") else []
    if len(controllers) > 1:
        shown = json.dumps(owners, separators=(",", ":"))
        why = f'Only one reference can have Controller set to true. Found "true" in references for {controllers[0]}'
        yield ErrorCause("metadata.ownerReferences", f"Invalid value: {shown}: {why} and {controllers[1]}")


def _finalizer_errors(finalizers: Iterable[str], *, custom: bool) -> Iterable[ErrorCause]:
    for index, finalizer in enumerate(finalizers):
        if problem := qualified_name_problem(finalizer):
            yield ErrorCause("metadata.finalizers", problem)
        elif not custom and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            why = f'Invalid value: "{finalizer}": name is neither a standard finalizer name nor is it fully qualified'
            yield ErrorCause(f"metadata.finalizers[{index}]", why)


def _added_finalizer_errors(new: Sequence[str], old: Sequence[str]) -> Iterable[ErrorCause]:
    if added := [finalizer for finalizer in new if finalizer not in old]:
        shown = f"[]string{{{', '.join(map(json.dumps, added))}}}"
        why = f"no new finalizers can be added if the object is being deleted, found new finalizers {shown}"
        yield ErrorCause("metadata.finalizers", f"Forbidden: {why}")


def merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` with `patch` applied: maps are merged, null removes a field, other values (and lists) replace it.

    The result may share parts with both arguments, which are not modified.
    """
    if type(patch) in _LEAVES or not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
"""Types that are checked first, since most values are leaves, and `isinstance(…, Mapping)` is slow."""


def clone(value: Any) -> Any:
    """Return a deep copy of a JSON value; any Mapping becomes a dict, any list or tuple a list."""
    kind = type(value)
    if kind is dict:
        return {key: item if type(item) in _LEAVES else clone(item) for key, item in value.items()}
    if kind in _LEAVES:
        return value
    if isinstance(value, (list, tuple)):
        return [clone(item) for item in value]
    return {key: clone(item) for key, item in value.items()} if isinstance(value, Mapping) else value
