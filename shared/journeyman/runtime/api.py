"""Answers the HTTP API: the clusters, what provision would do now, gauges, requeues, and forwarders' events.

The routes are in the handler (`functions/*/api.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from chalice.app import Response
from msgspec.structs import replace

from journeyman.core.plan import Step
from journeyman.core.scheduling.results import PlannedClaim, Results
from journeyman.core.scheduling.scheduler import solve
from journeyman.core.scheduling.verify import verify
from journeyman.errors import ConfigurationError, ForbiddenError, JourneymanError, UnknownClusterError
from journeyman.observe.prometheus import CONTENT_TYPE
from journeyman.ports import ApiRequest, Message
from journeyman.runtime.composition import Context, Runtime
from journeyman.runtime.receiver import Receiver, read_sender
from journeyman.runtime.scrape import groups, no_larger_than_may_be, scrape
from journeyman.steps.load import EVERYTHING, load
from journeyman.steps.scheduling_inputs import scheduling_inputs_of

Body = dict[str, Any]

STATUS: Final[Mapping[type[JourneymanError], int]] = {
    UnknownClusterError: 404,
    ConfigurationError: 409,
    ForbiddenError: 502,
}
_RECEIVERS: Final[WeakKeyDictionary[Runtime, Receiver]] = WeakKeyDictionary()


def answer(runtime: Runtime, work: Callable[[], Body | Response], *, status: int = 200) -> Response:
    """Return what `work` gives as a response, or its error: what happened, to which object, what to do."""
    try:
        given = work()
        return given if isinstance(given, Response) else Response(body=given, status_code=status)
    except JourneymanError as error:
        runtime.log_error(error, controller="api")
        code = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 503 if error.retryable else 500)
        facts = {name: str(value) for name, value in error.context.items()}
        return Response(body={"error": type(error).__name__, "message": error.message, **facts}, status_code=code)


def clusters(runtime: Runtime) -> Body:
    """The clusters served here, by name."""
    return {"clusters": [{"name": name} for name in runtime.clusters]}


def plan(runtime: Runtime, cluster: str, context: Context) -> Body:
    """Return what provision would do now for pending pods, and why some are unschedulable. Writes nothing.

    NodeClaims in flight count as capacity, as in the step; the step's other reconcilers are not part of the answer.

    Raises:
        UnknownClusterError: The cluster is not served here.
        JourneymanError: The cluster or the cloud cannot be read.
    """
    with runtime.invocation(_request(runtime, cluster, context, "what would provision do?"), context) as run:
        world = scheduling_inputs_of(run, load(run, EVERYTHING))
        options = replace(run.settings.scheduling, bound=True)
        results = solve(world.snapshot, world.catalogue, options=options)
        defects = verify(world.snapshot, world.catalogue, results)
        header = {"cluster": cluster, "time": run.clock.now().isoformat()}
        return {**header, **_results(results), "defects": list(map(str, defects))}


def metrics(runtime: Runtime, cluster: str, of: str, context: Context) -> Response:
    """The cluster's gauges for Prometheus (`scrape`): all of them, or those groups that `of` names. Writes nothing.

    Raises:
        UnknownClusterError: The cluster is not served here.
        ConfigurationError: `of` names no group, or the answer would be too large.
        JourneymanError: The cluster or the cloud cannot be read.
    """
    chosen = groups(of)
    with runtime.invocation(_request(runtime, cluster, context, "a scrape of metrics"), context) as run:
        text = scrape(run, chosen)
    return Response(body=no_larger_than_may_be(text), headers={"Content-Type": CONTENT_TYPE})


def requeue(runtime: Runtime, cluster: str) -> Body:
    """Let provision run for the cluster now.

    Raises:
        UnknownClusterError: The cluster is not served here.
        CloudProviderError: The queue did not take it.
    """
    runtime.settings_of(cluster)
    runtime.queue.send([Message(cluster=cluster, step=Step.PROVISION, reason="asked for through the API")])
    return {"cluster": cluster, "step": Step.PROVISION.value, "status": "sent"}


def _request(runtime: Runtime, cluster: str, context: Context, reason: str) -> ApiRequest:
    """Return the trigger of a request, which reads what provision reads."""
    return ApiRequest(
        id=context.aws_request_id, cluster=cluster, step=Step.PROVISION, reason=reason, time=runtime.clock.now()
    )


def receive(runtime: Runtime, cluster: str, authorization: str, body: bytes) -> Response:
    """Take a forwarder's event, if it may send one (`receiver`). After a failure of ours the answer only says to try again."""

    def work() -> Response:
        verdict = _receiver(runtime).receive(runtime, cluster, authorization, body)
        return Response(body=verdict.body, status_code=verdict.status)

    response = answer(runtime, work)
    if response.status_code >= 500:
        return Response(body={"error": "Unavailable", "message": "try again later"}, status_code=response.status_code)
    return response


def _receiver(runtime: Runtime) -> Receiver:
    """Return the runtime's own, which knows what it has sent."""
    if runtime not in _RECEIVERS:
        _RECEIVERS[runtime] = Receiver(read_sender(os.environ))
    return _RECEIVERS[runtime]


def _results(results: Results) -> Body:
    return {
        "nodeClaims": [_claim(claim) for claim in results.new_claims],
        "existing": {node: list(pods) for node, pods in sorted(results.existing.items())},
        "errors": {
            pod: {
                "kind": error.kind,
                "message": error.message,
                "nodePools": dict(error.by_node_pool),
                "smallestChange": error.smallest_change,
            }
            for pod, error in sorted(results.pod_errors.items())
        },
        "pricePerHour": results.price,
        "lowerBoundPerHour": results.lower_bound,
        "gap": results.gap,
    }


def _claim(claim: PlannedClaim) -> Body:
    instance_type, zone, capacity_type = claim.offering
    return {
        "nodePool": claim.node_pool,
        "instanceType": instance_type,
        "zone": zone,
        "capacityType": capacity_type,
        "pricePerHour": claim.price,
        "instanceTypes": list(claim.instance_types),
        "pods": list(claim.pods),
    }
