"""Implements the HTTP API: its routes, which the handlers of every cloud serve (`functions/*/api.py`), and what they answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from chalice.app import Chalice, Response
from msgspec.structs import replace

from journeyman.core.lifecycle.unused_launches import remember_launches
from journeyman.core.plan import Step
from journeyman.core.scheduling.results import PlannedClaim, Results
from journeyman.core.scheduling.scheduler import Scheduler, explained, pods_to_schedule, solve_without_launches_for
from journeyman.errors import ConfigurationError, ForbiddenError, JourneymanError, UnknownClusterError
from journeyman.observe.prometheus import CONTENT_TYPE
from journeyman.ports import ApiRequest, Message
from journeyman.runtime.composition import Context, Runtime
from journeyman.runtime.receiver import Receiver, read_sender
from journeyman.runtime.scrape import check_size, parse_groups, scrape
from journeyman.steps.load import EVERYTHING, load
from journeyman.steps.scheduling_inputs import scheduling_inputs_of

Body = dict[str, Any]
View = TypeVar("View", bound=Callable[..., Response])

STATUS: Final[Mapping[type[JourneymanError], int]] = {
    UnknownClusterError: 404,
    ConfigurationError: 409,
    ForbiddenError: 502,
}
_RECEIVERS: Final[WeakKeyDictionary[Runtime, Receiver]] = WeakKeyDictionary()


def application(runtime: Callable[[], Runtime]) -> Any:
    """Return the Chalice application with all routes; `runtime` returns the process's runtime, and is called for each request."""
    app = events_application(runtime)

    @_route(app, "GET", "/clusters")
    def list_clusters() -> Response:
        """List the clusters of this deployment."""
        return respond(runtime(), lambda: clusters(runtime()))

    @_route(app, "GET", "/clusters/{name}/plan")
    def show_plan(name: str) -> Response:
        """Show what provision would do now; write nothing."""
        return respond(runtime(), lambda: plan(runtime(), name, app.lambda_context))

    @_route(app, "GET", "/clusters/{name}/metrics")
    def show_metrics(name: str) -> Response:
        """Show the cluster's gauges for Prometheus; write nothing."""
        of = (app.current_request.query_params or {}).get("of", "")
        return respond(runtime(), lambda: metrics(runtime(), name, of, app.lambda_context))

    @_route(app, "POST", "/clusters/{name}/requeue")
    def start_provision(name: str) -> Response:
        """Start provision for the cluster."""
        return respond(runtime(), lambda: requeue(runtime(), name), status=202)

    return app


def events_application(runtime: Callable[[], Runtime]) -> Any:
    """Return an application with the route for forwarders' events only, whose sender the cluster authenticates and not the cloud."""
    app: Any = Chalice(app_name="journeyman", configure_logs=False)

    @_route(app, "POST", "/clusters/{name}/events")
    def receive_event(name: str) -> Response:
        """Receive a forwarder's event, and start the step that it names."""
        request = app.current_request
        return receive(runtime(), name, request.headers.get("authorization", ""), request.raw_body)

    return app


def _route(app: Any, method: str, path: str) -> Callable[[View], View]:
    """Return Chalice's decorator that adds a route."""
    decorator: Callable[[View], View] = app.route(path, methods=[method])
    return decorator


def respond(runtime: Runtime, work: Callable[[], Body | Response], *, status: int = 200) -> Response:
    """Call `work`; return its result as a response, or a response that describes the error that it raises."""
    try:
        result = work()
        return result if isinstance(result, Response) else Response(body=result, status_code=status)
    except JourneymanError as error:
        runtime.log_error(error, controller="api")
        code = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 503 if error.retryable else 500)
        context = {name: str(value) for name, value in error.context.items()}
        return Response(body={"error": type(error).__name__, "message": error.message, **context}, status_code=code)


def clusters(runtime: Runtime) -> Body:
    """Return the clusters of this deployment, by name."""
    return {"clusters": [{"name": name} for name in runtime.clusters]}


def plan(runtime: Runtime, cluster: str, context: Context) -> Body:
    """Return what provision would do now for pending pods, and why some are unschedulable. Writes nothing.

    NodeClaims in flight count as capacity, as in the step. The step's other reconcilers do not run.

    Raises:
        UnknownClusterError: The cluster is not registered here.
        JourneymanError: The cluster or the cloud cannot be read.
    """
    with runtime.invocation(_request(runtime, cluster, context, "GET plan"), context) as run:
        inputs = scheduling_inputs_of(run, load(run, EVERYTHING))
        options = replace(run.settings.scheduling, bound=True)
        scheduler = Scheduler(inputs.snapshot, inputs.catalogue, options)
        waiting, pods = remember_launches(inputs.snapshot).waiting, pods_to_schedule(inputs.snapshot)
        results, _ = solve_without_launches_for(scheduler, waiting, pods, effort=run.effort)
        results = explained(results)
        defects = run.verify(
            inputs.snapshot, inputs.catalogue, results, ignore_dra_requests=options.ignore_dra_requests
        )
        header = {"cluster": cluster, "time": run.clock.now().isoformat()}
        return {**header, **_results(results), "defects": list(map(str, defects))}


def metrics(runtime: Runtime, cluster: str, of: str, context: Context) -> Response:
    """Return the cluster's gauges for Prometheus (`scrape`): all of them, or the groups in `of`. Writes nothing.

    Raises:
        UnknownClusterError: The cluster is not registered here.
        ConfigurationError: `of` contains an unknown group, or the response would be too large.
        JourneymanError: The cluster or the cloud cannot be read.
    """
    chosen = parse_groups(of)
    with runtime.invocation(_request(runtime, cluster, context, "GET metrics"), context) as run:
        text = scrape(run, chosen)
    return Response(body=check_size(text), headers={"Content-Type": CONTENT_TYPE})


def requeue(runtime: Runtime, cluster: str) -> Body:
    """Start provision for the cluster.

    Raises:
        UnknownClusterError: The cluster is not registered here.
        CloudProviderError: The queue refused the message.
    """
    runtime.settings_of(cluster)
    runtime.queue.send([Message(cluster=cluster, step=Step.PROVISION, reason="requested through the API")])
    return {"cluster": cluster, "step": Step.PROVISION.value, "status": "sent"}


def _request(runtime: Runtime, cluster: str, context: Context, reason: str) -> ApiRequest:
    """Return the trigger of a request. Its step is provision, because the request reads the same objects."""
    return ApiRequest(
        id=context.aws_request_id, cluster=cluster, step=Step.PROVISION, reason=reason, time=runtime.clock.now()
    )


def receive(runtime: Runtime, cluster: str, authorization: str, body: bytes) -> Response:
    """Receive a forwarder's event (`receiver`). The sender may be unauthenticated, so internal errors are not shown to it."""

    def work() -> Response:
        verdict = _receiver(runtime).receive(runtime, cluster, authorization, body)
        return Response(body=verdict.body, status_code=verdict.status)

    response = respond(runtime, work)
    if response.status_code >= 500:
        return Response(body={"error": "Unavailable", "message": "try again later"}, status_code=response.status_code)
    return response


def _receiver(runtime: Runtime) -> Receiver:
    """Return the runtime's receiver, which keeps the ids of the events that it has sent on."""
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
        "chosenPlan": results.chosen_plan.as_data() if results.chosen_plan is not None else None,
    }


def _claim(claim: PlannedClaim) -> Body:
    return {
        "nodePool": claim.node_pool,
        "instanceType": claim.offering.instance_type,
        "zone": claim.offering.zone,
        "capacityType": claim.offering.capacity_type,
        "pricePerHour": claim.price,
        "instanceTypes": list(claim.instance_types),
        "pods": list(claim.pods),
    }
