"""Injects faults into a `ports.KubeStore`, with the errors that its callers see; `aws_cloud` and `alibaba_cloud` do so for clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial, update_wrapper
from inspect import signature
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from journeyman.core.api.objects import POD, Resource
from journeyman.errors import GoneError, KubeAPIError, KubeUnavailableError, TooManyRequestsError
from journeyman.ports import JSON, Patch, WatchEvent
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.apiserver.server import create_sequentially, patch_sequentially
from journeyman_simulator.faults.call_sites import KUBE_READS, kube_site
from journeyman_simulator.faults.fault_injection import FaultInjector, InjectableCall
from journeyman_simulator.faults.fault_scenario import FaultKind
from journeyman_simulator.faults.scenario_view import HUMAN, RUN_USER_PREFIX

P = ParamSpec("P")
T = TypeVar("T")

TOUCHED: Final = "example.com/touched"
"""The annotation that the conflicting writer sets."""


def _with_fault(method: Callable[Concatenate[ApiServer, P], T]) -> Callable[Concatenate[FaultyStore, P], T]:
    """Return a method of `FaultyStore` that makes the call of the API server, or injects its fault."""
    names = tuple(signature(method).parameters)[1:]

    def call(store: FaultyStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        return store.call(method.__name__, arguments, partial(method, store.server, *args, **kwargs))

    update_wrapper(call, method)
    return call


class FaultyStore:
    """One function's connection to a cluster.

    Args:
        server: The API server.
        step: The function's step; the function writes as the user "journeyman/<step>".
        faults: Decides for each call whether it fails.
        version_at: Returns the server's version at a time, for stale reads.
    """

    def __init__(
        self, server: ApiServer, step: str, faults: FaultInjector, version_at: Callable[[datetime], int]
    ) -> None:
        self.server = server.acting_as(f"{RUN_USER_PREFIX}{step}")
        self._human = server.acting_as(HUMAN)
        self._step = step
        self._faults = faults
        self._version_at = version_at
        self._touches = 0

    version = _with_fault(ApiServer.version)
    list = _with_fault(ApiServer.list)
    get = _with_fault(ApiServer.get)
    create = _with_fault(ApiServer.create)
    patch = _with_fault(ApiServer.patch)
    apply = _with_fault(ApiServer.apply)
    delete = _with_fault(ApiServer.delete)
    evict = _with_fault(ApiServer.evict)

    def create_each(self, resource: Resource[Any], bodies: Sequence[JSON]) -> tuple[dict[str, Any] | KubeAPIError, ...]:
        """Create the objects one after another, each in its own call."""
        return create_sequentially(self, resource, bodies)

    def patch_each(
        self, resource: Resource[Any], patches: Sequence[Patch], *, subresource: str = ""
    ) -> tuple[dict[str, Any] | KubeAPIError, ...]:
        """Patch the objects one after another, each in its own call."""
        return patch_sequentially(self, resource, patches, subresource)

    def watch(self, resource: Resource[T], **_selection: Any) -> Iterator[WatchEvent[T]]:
        """Raise GoneError, since runs in these scenarios do not watch."""
        raise GoneError("watches are not served here", status=410, reason="Expired", resource=resource.kind)

    def call(self, verb: str, arguments: Mapping[str, Any], perform: Callable[[], T]) -> T:
        """Make a call of the API server, or inject its fault.

        Args:
            verb: The name of the method.
            arguments: The arguments by name.
            perform: Makes the call.
        """
        resource = POD if verb == "evict" else arguments.get("resource")
        site = kube_site(self._step, verb, resource, arguments.get("subresource", ""))
        has_conflicts = verb not in KUBE_READS and "name" in arguments
        call = InjectableCall(
            site=site,
            error=partial(_error, site),
            touch=partial(self._touch, resource, arguments) if has_conflicts else None,
            cached=arguments.get("cached", False),
        )
        response: T = self._faults.call(call, perform, partial(self._list_as_of, arguments) if verb == "list" else None)
        return response

    def _list_as_of(self, arguments: Mapping[str, Any], time: datetime) -> Any:
        selection = {name: value for name, value in arguments.items() if name != "cached"}
        try:
            return self.server.list_at(version=self._version_at(time), **selection)
        except GoneError:  # etcd was restored since: the API server's cache is new
            return self.server.list(**selection)

    def _touch(self, resource: Any, arguments: Mapping[str, Any]) -> None:
        """Write the object as another client, so that the call conflicts with the write."""
        self._touches += 1
        mark = {"metadata": {"annotations": {TOUCHED: str(self._touches)}}}
        try:
            self._human.patch(resource, arguments["name"], mark, namespace=arguments.get("namespace", ""))
        except KubeAPIError:
            return  # no write to conflict with


def _error(site: str, kind: FaultKind) -> Exception:
    return kube_error(kind, site)


_CONNECTION_ERRORS: Final = {
    FaultKind.FAIL_BEFORE: "the connection was refused",
    FaultKind.FAIL_AFTER: "the connection broke before the response",
    FaultKind.TIMEOUT_BEFORE: "no response in time",
    FaultKind.TIMEOUT_AFTER: "no response in time",
}


def kube_error(kind: FaultKind, site: str) -> KubeAPIError:
    """Return the error that `kube.http_store` raises after its retries."""
    if kind is FaultKind.THROTTLE:
        return TooManyRequestsError("the server has asked us to wait", status=429, reason="TooManyRequests", call=site)
    return KubeUnavailableError(_CONNECTION_ERRORS[kind], call=site)
