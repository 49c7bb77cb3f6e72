"""Reads from the cloud why instances ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from journeyman.core.state import BuildFailure
from journeyman.errors import CloudProviderError
from journeyman.steps.context import RunContext
from journeyman.steps.recorder import log_fields


def read_end_reasons(run: RunContext, provider_ids: Collection[str]) -> Mapping[str, BuildFailure]:
    """Return why these instances ended, by provider id, as far as the cloud says; none if it does not answer."""
    if not provider_ids:
        return {}
    try:
        return run.cloud.end_reasons(provider_ids)
    except CloudProviderError as error:
        text = f"cannot read why instances ended, so their NodePools count as the cause: {error.message}"
        run.telemetry.log("warning", text, **log_fields(error))
        return {}
