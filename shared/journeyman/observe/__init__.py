"""Observability: log lines, metrics and Kubernetes Events, behind `ports.Telemetry`."""

from journeyman.observe.telemetry import RunTelemetry

__all__ = ["RunTelemetry"]
