"""Several patches, one after the other: where histories are to repeat, nothing happens side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from journeyman.core.api.objects import Resource
from journeyman.errors import KubeAPIError
from journeyman.ports import KubeStore, Patch


def patched_in_turn(
    store: KubeStore, resource: Resource[Any], patches: Sequence[Patch], subresource: str = ""
) -> tuple[dict[str, Any] | KubeAPIError, ...]:
    """What became of each, in their order."""

    def one(patch: Patch) -> dict[str, Any] | KubeAPIError:
        try:
            return store.patch(resource, patch.name, patch.body, namespace=patch.namespace, subresource=subresource)
        except KubeAPIError as error:
            return error

    return tuple(one(patch) for patch in patches)
