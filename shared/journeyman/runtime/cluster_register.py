"""The registered clusters of a process: those of its environment, and those in SSM parameters, which change while it runs.

Lambda's environment variables hold 4 KB, a dozen clusters. Below the path in JOURNEYMAN_CLUSTERS_PATH each parameter is one
cluster: the last part of its name is the cluster's name, its value the same JSON object as in JOURNEYMAN_CLUSTERS. A process reads
them when it starts and every five minutes; a message that names a cluster it does not know has it read them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from threading import RLock
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from journeyman.errors import ConfigurationError, JourneymanError
from journeyman.kube.clusters import RegisteredCluster, with_role_of
from journeyman.ports import Clock
from journeyman.runtime.environment import Environment
from journeyman.steps.context import Settings

READ_PERIOD: Final = timedelta(minutes=5)
UNKNOWN_PERIOD: Final = timedelta(seconds=15)
"""How soon the parameters are read again for a cluster that is not among them, and after a failed read."""


class RegisteredClusters(Mapping[str, RegisteredCluster]):
    """The registered clusters by name. Thread-safe.

    Args:
        environment: The process's settings, with its own clusters, which come first.
        clock: The time.
        read: Returns the values of the parameters by name; called only if the environment has a path.
        report: Called with each problem: what is wrong, and with which parameter.
    """

    def __init__(
        self,
        environment: Environment,
        clock: Clock,
        read: Callable[[], Mapping[str, str]],
        report: Callable[[JourneymanError], None],
    ) -> None:
        self._environment = environment
        self._clock = clock
        self._read = read
        self._report = report
        self._lock = RLock()
        self._clusters: Mapping[str, RegisteredCluster] = dict(environment.clusters)
        self._errors: Mapping[str, ConfigurationError] = {}
        self._read_at: datetime | None = None
        self._read_error: JourneymanError | None = None

    def __getitem__(self, name: str) -> RegisteredCluster:
        """Return a cluster.

        Raises:
            KeyError: It is not registered.
            ConfigurationError: Its parameter does not parse, which can be mended: a message for it must not be lost.
            CloudProviderError: It is not in the environment, and the parameters were never read.
        """
        with self._lock:
            self._read_if_older_than(READ_PERIOD if name in self._clusters else UNKNOWN_PERIOD)
            if name in self._clusters:
                return self._clusters[name]
            error = self._errors.get(name) or self._read_error
            raise error if error is not None else KeyError(name)

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            self._read_if_older_than(READ_PERIOD if self._read_error is None else UNKNOWN_PERIOD)
            return iter(tuple(self._clusters))

    def __len__(self) -> int:
        return len(tuple(iter(self)))

    @property
    def settings(self) -> Mapping[str, Settings]:
        """The settings of each cluster's runs by name, as current as the clusters."""
        return _SettingsByCluster(self, self._environment.defaults)

    def _read_if_older_than(self, age: timedelta) -> None:
        now = self._clock.now()
        if not self._environment.clusters_path or (self._read_at is not None and now - self._read_at < age):
            return
        is_first = self._read_at is None or self._read_error is not None
        self._read_at = now
        try:
            values = self._read()
        except JourneymanError as error:
            self._report(error)
            self._read_error = error if is_first else None  # what was read before still counts
            return
        self._read_error = None
        self._clusters, self._errors = self._parsed(values)
        for problem in self._errors.values():
            self._report(problem)

    def _parsed(self, values: Mapping[str, str]) -> tuple[dict[str, RegisteredCluster], dict[str, ConfigurationError]]:
        clusters = dict(self._environment.clusters)
        errors: dict[str, ConfigurationError] = {}
        for parameter, value in sorted(values.items()):
            name = parameter.rpartition("/")[2]
            try:
                clusters[name] = self._cluster(name, value, clusters)
            except ConfigurationError as error:
                error.context |= {
                    "cluster": name,
                    "parameter": parameter,
                    "to_do": "correct the parameter, or delete it",
                }
                errors.setdefault(name, error)
        return clusters, errors

    def _cluster(self, name: str, value: str, known: Iterable[str]) -> RegisteredCluster:
        if name in known:
            raise ConfigurationError(
                f"skipping cluster {name!r} in a parameter: it is registered in the environment as well"
            )
        try:
            fields = msgspec.json.decode(value, type=dict[str, Any])
            cluster = msgspec.convert({"name": name, **fields}, RegisteredCluster)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"skipping cluster {name!r}: its parameter does not parse: {error}") from error
        if cluster.name != name:
            raise ConfigurationError(f"skipping cluster {name!r}: its parameter names the cluster {cluster.name!r}")
        return with_role_of(cluster, self._environment.function)


class _SettingsByCluster(Mapping[str, Settings]):
    def __init__(self, clusters: Mapping[str, RegisteredCluster], defaults: Settings) -> None:
        self._clusters = clusters
        self._defaults = defaults

    def __getitem__(self, name: str) -> Settings:
        return replace(self._defaults, cluster_name=self._clusters[name].name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._clusters)

    def __len__(self) -> int:
        return len(self._clusters)


def read_parameters(ssm: Any, path: str) -> dict[str, str]:
    """Return the values of the parameters directly below a path by name.

    Raises:
        CloudProviderError: SSM did not respond, or rejected the call.
    """
    from journeyman.cloud.aws.aws_errors import translated  # noqa: PLC0415 - only AWS has its SDK

    pages = ssm.get_paginator("get_parameters_by_path")
    with translated("ssm:GetParametersByPath", path=path):
        return {p["Name"]: p["Value"] for page in pages.paginate(Path=path) for p in page["Parameters"]}
