"""The part of every object that the server itself keeps: identity, versions, life and death."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from uuid import UUID

from journeyman.simulate.apiserver.refusals import Cause

JSON = Mapping[str, Any]

SYSTEM_FIELDS: Final = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "generateName",
)
"""Metadata that a write cannot change; what it says about them is ignored."""

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MOST_ANNOTATION_BYTES: Final = 256 * 1024
_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # those of k8s.io/apimachinery/pkg/util/rand
_SUFFIX_LENGTH: Final = 5
_SCATTER: Final = 8_191_159  # coprime with 27**5: consecutive serials give unlike suffixes, and none twice


def text(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as `metav1.Time` is written."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def uid(serial: int) -> str:
    """A UID that depends on nothing but the serial number."""
    return str(UUID(int=(0x4A << 120) | (4 << 76) | (2 << 62) | serial))


def generated_name(prefix: str, serial: int) -> str:
    """The name that `generateName` asks for: five letters behind the prefix."""
    number = serial * _SCATTER % len(_SUFFIX_LETTERS) ** _SUFFIX_LENGTH
    letters = []
    for _ in range(_SUFFIX_LENGTH):
        number, digit = divmod(number, len(_SUFFIX_LETTERS))
        letters.append(_SUFFIX_LETTERS[digit])
    return prefix + "".join(letters)


def with_metadata(obj: JSON, **fields: Any) -> dict[str, Any]:
    """The object with these metadata fields set; None removes one."""
    metadata = {**obj["metadata"], **fields}
    return {**obj, "metadata": {key: value for key, value in metadata.items() if value is not None}}


def is_deleting(obj: JSON) -> bool:
    """Whether the object has a deletionTimestamp."""
    return "deletionTimestamp" in obj["metadata"]


def deletion_is_complete(obj: JSON) -> bool:
    """Whether nothing holds a deleted object any more: no finalizer, no grace period."""
    meta = obj["metadata"]
    return is_deleting(obj) and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")


def marked_for_deletion(obj: JSON, now: datetime, grace_seconds: int) -> dict[str, Any]:
    """The object with a deletionTimestamp at the end of its grace period.

    Restates: k8s.io/apiserver `pkg/registry/rest/delete.go` `BeforeDelete`: a later deletion may shorten the period,
    never lengthen it; the first one counts as a new generation.
    """
    meta = obj["metadata"]
    if not is_deleting(obj):
        return with_metadata(
            obj,
            deletionTimestamp=text(now + timedelta(seconds=grace_seconds)),
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


def problems(new: JSON, old: JSON | None) -> Iterable[Cause]:
    """What is wrong with an object's metadata.

    Restates: k8s.io/apimachinery `pkg/api/validation/objectmeta.go` `ValidateObjectMeta`.
    """
    meta = new["metadata"]
    name = meta.get("name")
    if not name:
        yield Cause("metadata.name", "Required value: name or generateName is required")
    elif len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        yield Cause("metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 subdomain is expected')
    yield from _bad_labels(meta.get("labels") or {})
    yield from _bad_annotations(meta.get("annotations") or {})
    yield from _bad_owners(meta.get("ownerReferences") or ())
    yield from _bad_finalizers(meta.get("finalizers") or (), old)


def qualified_name_problem(key: str) -> str:
    """Why a label, annotation, taint or finalizer name is not one; empty if it is."""
    prefix, slash, name = key.rpartition("/")
    sound = len(name) <= 63 and _NAME.fullmatch(name) and (not slash or _SUBDOMAIN.fullmatch(prefix))
    return (
        "" if sound else f"Invalid value: \"{key}\": name part must consist of alphanumeric characters, '-', '_' or '.'"
    )


def label_value_problem(value: str) -> str:
    """Why a text is no label value; empty if it is."""
    if len(value) > 63:
        return f'Invalid value: "{value}": must be no more than 63 characters'
    sound = not value or _NAME.fullmatch(value)
    return (
        ""
        if sound
        else f"Invalid value: \"{value}\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
    )


def _bad_labels(labels: JSON) -> Iterable[Cause]:
    for key, value in labels.items():
        if not isinstance(value, str):
            yield Cause(f"metadata.labels.{key}", f"Invalid value: {value!r}: must be a string")
        elif problem := qualified_name_problem(key) or label_value_problem(value):
            yield Cause("metadata.labels", problem)


def _bad_annotations(annotations: JSON) -> Iterable[Cause]:
    for key, value in annotations.items():
        if not isinstance(value, str):
            yield Cause(f"metadata.annotations.{key}", f"Invalid value: {value!r}: must be a string")
        elif problem := qualified_name_problem(key.lower()):
            yield Cause("metadata.annotations", problem)
    if sum(len(key) + len(str(value)) for key, value in annotations.items()) > _MOST_ANNOTATION_BYTES:
        yield Cause("metadata.annotations", f"Too long: may not be more than {_MOST_ANNOTATION_BYTES} bytes")


def _bad_owners(owners: Iterable[JSON]) -> Iterable[Cause]:
    controllers = []
    for owner in owners:
        missing = [field for field in ("apiVersion", "kind", "name", "uid") if not owner.get(field)]
        yield from (Cause(f"metadata.ownerReferences.{field}", "Invalid value: must not be empty") for field in missing)
        controllers += [owner.get("name")] if owner.get("controller") else []
    if len(controllers) > 1:
        why = f"Invalid value: Only one reference can have Controller set to true. Found {controllers}"
        yield Cause("metadata.ownerReferences", why)


def _bad_finalizers(finalizers: Iterable[str], old: JSON | None) -> Iterable[Cause]:
    for finalizer in finalizers:
        if problem := qualified_name_problem(finalizer):
            yield Cause("metadata.finalizers", problem)
        elif "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            why = f'Invalid value: "{finalizer}": name is neither a standard finalizer name nor is it fully qualified'
            yield Cause("metadata.finalizers", why)
    if old is not None and is_deleting(old):
        added = [f for f in finalizers if f not in (old["metadata"].get("finalizers") or ())]
        if added:
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers {added}"
            yield Cause("metadata.finalizers", f"Forbidden: {why}")
