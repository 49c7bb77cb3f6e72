"""The application's connections on a real control plane: as on Lambda, but for the time, and for where AWS is."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

from journeyman.observe import RunTelemetry
from journeyman.ports import KubeStore
from journeyman.runtime.aws import AwsAdapters, logger
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman.steps.context import Settings
from tests.controlplane.clock import DatedStore, JumpingClock


def runtime(
    variables: Mapping[str, str], clock: JumpingClock, client: Callable[[str], Any], metrics: io.TextIOBase
) -> Runtime:
    """A runtime that remembers nothing yet.

    Args:
        variables: The functions' environment.
        clock: The scenario's.
        client: Makes a boto3 client for a service.
        metrics: Takes what the functions write in CloudWatch's embedded format.
    """
    environment = read_environment(variables)
    adapters = _Adapters(environment, clock=clock, clients=lambda service, _region: client(service))
    adapters.jumping, adapters.metrics = clock, metrics
    return Runtime(environment.settings, adapters)


class _Adapters(AwsAdapters):
    jumping: JumpingClock
    metrics: io.TextIOBase

    def store(self, cluster: Settings) -> KubeStore:
        return DatedStore(super().store(cluster), self.jumping)

    def telemetry(self, store: KubeStore, fields: Mapping[str, str]) -> RunTelemetry:
        return RunTelemetry(logger(), store, self.clock, fields=fields, stream=self.metrics)
