"""`ports.Telemetry` for one run: lines at once, metrics and Kubernetes Events when the run ends."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import IO, Any

from aws_lambda_powertools import Logger

from journeyman.core.plan import Event, Observation
from journeyman.observe import logs, metrics
from journeyman.observe.kube_events import COMPONENT, EventRecorder
from journeyman.ports import Clock, KubeStore


class RunTelemetry:
    """The explanations of one run of one step for one cluster.

    `fields` go onto every log line (controller, reconcileID, cluster, correlation_id). Nothing here raises.
    """

    def __init__(
        self,
        logger: Logger,
        store: KubeStore,
        clock: Clock,
        *,
        fields: Mapping[str, str],
        stream: IO[str] | None = None,
        component: str = COMPONENT,
        conditions: bool = True,
    ) -> None:
        """What one run tells.

        Args:
            logger: Where log lines go.
            store: The API server that Kubernetes Events are written to.
            clock: Their time.
            fields: On every log line.
            stream: Where metric lines go; standard output if None.
            component: Who Kubernetes Events are said to be from.
            conditions: Whether changes of status conditions are metrics (`operator_*`, each label set of which is billed).
        """
        self._conditions = conditions
        self._logger = logger
        self._fields = dict(fields)
        self._stream = stream
        self._observations: list[Observation] = []
        instance = self._fields.get("reconcileID", "")
        self._events = EventRecorder(store, clock, instance=instance, log=self.log, component=component)

    def log(self, level: str, message: str, **fields: Any) -> None:
        """One structured line, written at once."""
        logs.write(self._logger, level, message, {**self._fields, **fields})

    def event(self, event: Event) -> None:
        """Keep a Kubernetes Event for `flush`."""
        self._events.record(event)

    def observe(self, observation: Observation) -> None:
        """Keep a metric sample for `flush`."""
        if self._conditions or not observation.name.startswith("operator_"):
            self._observations.append(observation)

    def flush(self, *, until: datetime) -> None:
        """Write what was kept; Kubernetes Events stop at `until`."""
        observations, self._observations = self._observations, []
        constant = {"cluster": self._fields.get("cluster", "")}
        metrics.write(observations, constant=constant, stream=self._stream or sys.stdout)
        self._events.flush(until=until)
