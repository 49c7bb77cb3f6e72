"""Requests for many instances at once: their ids in batches, and a batch that the cloud refuses because of one instance in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from journeyman.errors import CloudProviderError, NoInstanceIdError

ToInstanceId = Callable[[str], str]
"""Returns the cloud's own id in a provider id. Raises NoInstanceIdError."""

DeleteBatch = Callable[[Mapping[str, str]], Mapping[str, CloudProviderError]]
"""Deletes instances, given as provider id by the cloud's own id, in one request; returns errors as `delete_in_batches` does.

Raises CloudProviderError if the cloud refused the request, which it does if it refuses one of the instances.
"""


def by_instance_id(
    provider_ids: Iterable[str], to_instance_id: ToInstanceId
) -> tuple[dict[str, str], dict[str, NoInstanceIdError]]:
    """Return the provider ids by the cloud's own id, sorted; and the error of each that is none of this cloud."""
    found: dict[str, str] = {}
    errors: dict[str, NoInstanceIdError] = {}
    for provider_id in sorted(set(provider_ids)):
        instance_id = _instance_id_or_error(provider_id, to_instance_id)
        if isinstance(instance_id, NoInstanceIdError):
            errors[provider_id] = instance_id
        else:
            found[instance_id] = provider_id
    return found, errors


def _instance_id_or_error(provider_id: str, to_instance_id: ToInstanceId) -> str | NoInstanceIdError:
    try:
        return to_instance_id(provider_id)
    except NoInstanceIdError as error:
        return error


def batches(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield the ids in lists of at most this size."""
    remaining = iter(ids)
    while batch := list(islice(remaining, size)):
        yield batch


def delete_in_batches(
    provider_ids: Iterable[str], to_instance_id: ToInstanceId, delete: DeleteBatch, size: int
) -> dict[str, CloudProviderError]:
    """Delete instances, at most `size` in a request; return the error of each that the cloud refused, by provider id.

    A refused batch is sent again in halves, until the refused instances are alone. After an error that may pass, the rest of
    the batch is left to the next run.
    """
    wanted, invalid = by_instance_id(provider_ids, to_instance_id)
    errors: dict[str, CloudProviderError] = dict(invalid)
    for ids in batches(wanted, size):
        errors |= _delete({id_: wanted[id_] for id_ in ids}, delete)
    return errors


def _delete(ids: Mapping[str, str], delete: DeleteBatch) -> dict[str, CloudProviderError]:
    try:
        return dict(delete(ids))
    except CloudProviderError as error:
        if len(ids) == 1 or error.retryable:
            return dict.fromkeys(ids.values(), error)
    first, second = list(batches(ids, (len(ids) + 1) // 2))
    return _delete({i: ids[i] for i in first}, delete) | _delete({i: ids[i] for i in second}, delete)
