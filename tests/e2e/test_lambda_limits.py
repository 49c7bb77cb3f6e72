"""The deployed application within Lambda's limits (recursive-loop detection), and without an API server for a while.

Template, queues and handlers are the deployed ones, on the in-memory API server and moto, in virtual time.
"""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman.core.api.objects import NODE, NODECLAIM, Resource
from journeyman.errors import KubeUnavailableError
from journeyman.runtime.composition import installed
from journeyman_simulator.lambda_functions import InvocationOutcome
from journeyman_simulator.local_aws import LocalAwsDeployment, local_runtime
from journeyman_simulator.local_deployment import ACTOR
from tests.helpers.deployed_application import FEW_FAMILIES, DeployedApplication, SandboxCrashes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]

START = datetime(2026, 3, 2, 9, 0, 20, tzinfo=timezone.utc)
BUDGET = Resource(
    group="policy", version="v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets", namespaced=True, type=dict
)


@pytest.fixture(params=["Allow", "Terminate"])
def application(request):
    """Deploy the application with and without loop detection; nodes need ten minutes to join."""
    logs: list = []
    parameters = {"RecursiveLoop": request.param}
    with LocalAwsDeployment(
        start=START, parameters=parameters, boot=timedelta(minutes=10), families=FEW_FAMILIES, on_log=logs.append
    ) as deployment:
        application = DeployedApplication(deployment, logs, SandboxCrashes())
        application.node_class()
        application.pool()
        application.deploy("web", 1)
        yield application


@pytest.mark.nightly  # tests/faults/test_scenario_run.py has shorter chains
def test_slowest_join_and_longest_drain_pass_with_and_without_loop_detection(application):
    """Both poll for ten minutes; no message is a dead letter, and the end is noticed within a sweep."""
    joined = application.until_running("web", 1, minutes=14)
    budget = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}
    meta = {"name": "web", "namespace": "default"}
    application.server.load(
        [{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": budget}]
    )
    (claim,) = application.claims()
    application.server.delete(NODECLAIM, claim.metadata.name)
    application.run(minutes=10)
    (before,) = application.server.list(NODE).items
    application.server.delete(BUDGET, "web", namespace="default")

    def is_drained():
        return before.metadata.name not in {n.metadata.name for n in application.server.list(NODE).items}

    drained = application.until(is_drained, "the node to be drained", minutes=5)

    assert sum(function.stopped for function in application.deployment.stack.functions.values()) == 0
    assert dead_letters(application) == []
    assert joined <= 10 * 60 + 120
    assert drained <= 120


class Outage:
    """An API server that does not answer while it `is_down`."""

    def __init__(self, store) -> None:
        self._store, self.is_down = store, False

    def __getattr__(self, verb):
        call = getattr(self._store, verb)

        def answered(*arguments, **options):
            if self.is_down:
                raise KubeUnavailableError("the API server does not answer")
            return call(*arguments, **options)

        return answered


@pytest.fixture
def unreliable():
    """Deploy the application with one Spot node, on an API server with outages."""
    logs: list = []
    with LocalAwsDeployment(start=START, families=FEW_FAMILIES, on_log=logs.append) as deployment:
        application = DeployedApplication(deployment, logs, SandboxCrashes())
        outage = Outage(deployment.server.acting_as(ACTOR))
        runtime = local_runtime(
            deployment.aws,
            deployment.stack.variables,
            cluster="demo",
            endpoint="https://demo.example",
            store=outage,
            clock=deployment.clock,
        )
        with installed(runtime):
            application.node_class()
            application.pool("default", ("karpenter.sh/capacity-type", "spot"))
            application.deploy("web", 1)
            application.until_running("web", 1)
            yield application, outage


def dead_letters(application):
    return [entry for entry in application.deployment.leftovers() if entry.startswith("dead letter")]


def interrupt(application):
    (claim,) = application.claims()
    application.aws.interrupt(claim.status.provider_id.rpartition("/")[2])
    return claim.metadata.name


@pytest.mark.parametrize("seconds", [pytest.param(3, marks=pytest.mark.nightly), 10])
def test_spot_notice_survives_a_short_outage_with_most_of_its_two_minutes(unreliable, seconds):
    """The failed message returns within seconds, not after the queue's visibility timeout of 90 s."""
    application, outage = unreliable
    outage.is_down = True
    name = interrupt(application)
    application.run(seconds=seconds)
    outage.is_down = False

    def is_deleted():
        return all(c.metadata.deletion_timestamp for c in application.claims() if c.metadata.name == name)

    assert application.until(is_deleted, "the claim to be deleted", minutes=2) <= 2 * seconds


def test_ten_minutes_without_an_api_server_leave_no_dead_letter(unreliable):
    """Messages return every 30 seconds at most, and all work is done soon after the end of the outage."""
    application, outage = unreliable
    outage.is_down = True
    interrupt(application)
    application.deploy("later", 2)
    application.run(minutes=10)
    outage.is_down = False

    assert application.until_running("later", 2, minutes=5) <= 120
    application.run(minutes=5)
    assert dead_letters(application) == []


def test_ten_minutes_of_throttled_polls_leave_no_dead_letter(unreliable):
    """Lambda receives messages before it knows that the account's limit is reached."""
    application, _ = unreliable
    functions = application.deployment.stack.functions.values()
    for function in functions:
        function.is_throttled = True
    name = interrupt(application)
    application.run(minutes=10)
    for function in functions:
        function.is_throttled = False
    application.run(minutes=5)

    assert name not in {claim.metadata.name for claim in application.claims()}
    assert dead_letters(application) == []


@pytest.fixture
def crashing():
    """Deploy the application with one Spot node; its functions crash as `crashes` plans it."""
    logs: list = []
    with LocalAwsDeployment(start=START, families=FEW_FAMILIES, on_log=logs.append) as deployment:
        application = DeployedApplication(deployment, logs, SandboxCrashes())
        with application.cold():
            application.node_class()
            application.pool("default", ("karpenter.sh/capacity-type", "spot"))
            application.deploy("web", 1)
            application.until_running("web", 1)
            yield application


def standstill(application, function):
    """Return the seconds from the first crash of a function to the start of its next run that succeeds."""
    runs = application.invocations(function)
    known = len(runs)

    def outcomes():
        return [(run.outcome, run.started_at) for run in runs[known:]]

    def recovered():
        crashed = [at for outcome, at in outcomes() if outcome is InvocationOutcome.CRASHED]
        later = [
            at for outcome, at in outcomes() if outcome is InvocationOutcome.SUCCEEDED and crashed and at > crashed[0]
        ]
        return (crashed[0], later[0]) if later else None

    application.until(recovered, f"{function} to run again", minutes=10)
    crashed_at, again_at = recovered()
    return (again_at - crashed_at).total_seconds()


@pytest.mark.parametrize(
    ("function", "effect", "cause", "seconds"),
    [
        ("Provision", ("after", "create NodeClaim"), lambda a: a.deploy("more", 3), 41),
        pytest.param(
            "Terminate",
            ("after", "TerminateInstances"),
            lambda a: a.server.delete(NODECLAIM, a.claims()[0].metadata.name),
            41,
            marks=pytest.mark.nightly,
        ),
        ("Interrupt", ("before", "delete NodeClaim"), interrupt, 21),
    ],
)
def test_crashed_function_holds_its_messages_for_seconds(crashing, function, effect, cause, seconds):
    """Its queue's visibility timeout would be 65 or 125 s. Steps with a Lease wait for the end of the crashed run's."""
    crashing.crashes.reset(effect)
    cause(crashing)

    assert standstill(crashing, function) <= seconds
    assert crashing.crashes.deaths == []
    assert dead_letters(crashing) == []
