"""The application's adapters on a real control plane: those of Lambda, with a simulated clock and AWS endpoint."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

from journeyman.observe import RunTelemetry
from journeyman.ports import KubeStore
from journeyman.runtime.adapters import logger
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.composition import Runtime
from journeyman.runtime.environment import read_environment
from journeyman.steps.context import Settings
from tests.controlplane.clock import DatedStore, JumpingClock


def runtime(
    variables: Mapping[str, str], clock: JumpingClock, client: Callable[[str], Any], metrics: io.TextIOBase
) -> Runtime:
    """Return a runtime with empty caches.

    Args:
        variables: The functions' environment.
        clock: The scenario's clock.
        client: Makes a boto3 client for a service.
        metrics: The stream to which the functions write metrics in CloudWatch's embedded metric format.
    """
    environment = read_environment(variables)
    adapters = _Adapters(environment, clock=clock, clients=lambda service, _region: client(service))
    adapters.scenario_clock, adapters.metrics = clock, metrics
    return Runtime(environment.settings, adapters)


class _Adapters(AwsAdapters):
    scenario_clock: JumpingClock
    metrics: io.TextIOBase

    def store(self, cluster: Settings) -> KubeStore:
        return DatedStore(super().store(cluster), self.scenario_clock)

    def telemetry(self, store: KubeStore, fields: Mapping[str, str]) -> RunTelemetry:
        return RunTelemetry(logger(), store, self.clock, fields=fields, stream=self.metrics)
