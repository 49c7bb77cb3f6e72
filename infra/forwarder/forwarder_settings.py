"""Read the settings from environment variables; README.md lists them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

from infra.forwarder.notifications import NotifiedStep
from infra.forwarder.watched_objects import NODE_CLASSES
from journeyman.kube.access.in_cluster import SERVICE_ACCOUNT, server_of

T = TypeVar("T")

SINKS: Final = ("sqs", "eventbridge", "https")
_SECONDS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LEVELS: Final = ("debug", "info", "warning", "error")


class SettingError(Exception):
    """A setting is missing or does not parse; the message has its name and an example."""


class ForwarderSettings(NamedTuple):
    """The settings of the process."""

    cluster: str
    cloud: str
    server: str
    token_file: Path | None
    ca_file: str
    sink: str
    region: str
    queues: Mapping[NotifiedStep, str]
    event_bus: str
    receiver_url: str
    receiver_token_file: Path
    receiver_ca_file: str
    idle_seconds: float
    max_seconds: float
    port: int
    log_level: str


def read_settings(variables: Mapping[str, str]) -> ForwarderSettings:
    """Return the validated settings.

    Raises:
        SettingError: One is missing or does not parse.
    """
    sink = _read(variables, "SINK", "sqs", _one_of(*SINKS))
    cluster = _required(variables, "CLUSTER_NAME")
    server = variables.get("KUBERNETES_URL", "") or server_of(variables)
    if not server:
        raise SettingError(
            "this process does not run in a pod (KUBERNETES_SERVICE_HOST is not set): set KUBERNETES_URL"
        )
    is_outside = "KUBERNETES_URL" in variables  # then kubelet mounts no token
    token_file = variables.get("KUBERNETES_TOKEN_FILE", "" if is_outside else str(SERVICE_ACCOUNT / "token"))
    receiver = _required(variables, "RECEIVER_URL").rstrip("/") if sink == "https" else ""
    if receiver and not receiver.startswith("https://"):
        raise SettingError(f"RECEIVER_URL is {receiver!r}: a token is only sent over https://")
    return ForwarderSettings(
        cluster=cluster,
        cloud=_read(variables, "CLOUD", "aws", _one_of(*NODE_CLASSES)),
        server=server,
        token_file=Path(token_file) if token_file else None,
        ca_file=variables.get("KUBERNETES_CA_FILE", "" if is_outside else str(SERVICE_ACCOUNT / "ca.crt")),
        sink=sink,
        region=variables.get("AWS_REGION", ""),
        queues={step: _required(variables, f"{step.name}_QUEUE_URL") for step in NotifiedStep} if sink == "sqs" else {},
        event_bus=_required(variables, "EVENT_BUS") if sink == "eventbridge" else "",
        receiver_url=f"{receiver}/clusters/{quote(cluster, safe='')}/events",
        receiver_token_file=Path(variables.get("RECEIVER_TOKEN_FILE") or "/var/run/secrets/journeyman/token"),
        receiver_ca_file=variables.get("RECEIVER_CA_FILE", ""),
        idle_seconds=_read(variables, "BATCH_IDLE_DURATION", "1s", _seconds),
        max_seconds=_read(variables, "BATCH_MAX_DURATION", "10s", _seconds),
        port=_read(variables, "PORT", "8081", int),
        log_level=_read(variables, "LOG_LEVEL", "info", _one_of(*_LEVELS)).upper(),
    )


def _required(variables: Mapping[str, str], name: str) -> str:
    if not variables.get(name):
        raise SettingError(f"{name} is not set; the Helm chart sets it from its values")
    return variables[name]


def _read(variables: Mapping[str, str], name: str, default: str, parse: Callable[[str], T]) -> T:
    text = variables.get(name) or default
    try:
        return parse(text)
    except ValueError as error:
        raise SettingError(f"{name} is {text!r}: {error}; an example is {default!r}") from error


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"none of {', '.join(choices)}")
        return text.lower()

    return parse


def _seconds(text: str) -> float:
    """Return a Go duration, as in Karpenter's settings, in seconds: `1s`, `500ms`, `1m30s`."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("not a duration")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
