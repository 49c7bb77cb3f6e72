"""Observability of a run, behind `ports.Telemetry`: log lines at once, metrics and Kubernetes Events at the end of the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import IO, Any

from aws_lambda_powertools import Logger

from journeyman.core.plan import Event, Observation
from journeyman.observe import embedded_metrics, logs
from journeyman.observe.kube_events import COMPONENT, EventRecorder
from journeyman.ports import Clock, KubeStore


class RunTelemetry:
    """The log lines, metrics and Events of one run of one step for one cluster. No method raises."""

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
        """Prepare to record.

        Args:
            logger: Writes log lines.
            store: The API server that Kubernetes Events are written to.
            clock: The time of the Events.
            fields: Fields of every log line (controller, reconcileID, cluster, correlation_id).
            stream: Where metric lines are written; standard output if None.
            component: Source and reportingComponent of the Events.
            conditions: Whether changes of status conditions are metrics (`operator_*`); CloudWatch bills each label set.
        """
        self._conditions = conditions
        self._logger = logger
        self._fields = dict(fields)
        self._stream = stream
        self._observations: list[Observation] = []
        instance = self._fields.get("reconcileID", "")
        self._events = EventRecorder(store, clock, instance=instance, log=self.log, component=component)

    def log(self, level: str, message: str, **fields: Any) -> None:
        """Write one structured line at once."""
        logs.write(self._logger, level, message, {**self._fields, **fields})

    def event(self, event: Event) -> None:
        """Keep a Kubernetes Event for `flush`."""
        self._events.record(event)

    def observe(self, observation: Observation) -> None:
        """Keep a metric sample for `flush`."""
        if self._conditions or not observation.name.startswith("operator_"):
            self._observations.append(observation)

    def flush(self, *, until: datetime) -> None:
        """Write metrics, then Kubernetes Events until `until`, then the metrics of those that were not written."""
        observations, self._observations = self._observations, []
        self._write(observations)
        self._write(self._events.flush(until=until))

    def _write(self, observations: Sequence[Observation]) -> None:
        constant = {"cluster": self._fields.get("cluster", "")}
        embedded_metrics.write(observations, constant=constant, stream=self._stream or sys.stdout)
