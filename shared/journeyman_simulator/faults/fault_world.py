"""What a story of faults happens to: the deployed application on a simulated cluster and account.

The template is stood up, the handlers are those that are deployed, the AWS adapter is the real one. Nothing here is drawn:
the same story has the same history, to the last byte of every write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from itertools import count
from typing import Any, Final

from msgspec.structs import replace

from journeyman.core.plan import Step
from journeyman.errors import JourneymanError
from journeyman.events import parse_trigger
from journeyman.ports import Clock
from journeyman.runtime.environment import Environment, read_environment
from journeyman_simulator.apiserver import ApiServer
from journeyman_simulator.clock import SkewedClock, VirtualClock
from journeyman_simulator.cloud_rules.schedule_runner import ScheduleRunner
from journeyman_simulator.deployment_files import deployment_file
from journeyman_simulator.ec2_machines import Ec2Machines
from journeyman_simulator.faults.account_operations import Hand, Ledger
from journeyman_simulator.faults.call_sites import Coverage
from journeyman_simulator.faults.cooperative_scheduler import Baton
from journeyman_simulator.faults.fault_injection import Died, Faults, MessageFaults, current_name
from journeyman_simulator.faults.fault_scenario import CallFault, MessageFault, Setting, Story
from journeyman_simulator.faults.history import History, Moment
from journeyman_simulator.faults.invariants.checkers import Judges, Rule
from journeyman_simulator.faults.manifests import CLUSTER, furniture
from journeyman_simulator.faults.node_faults import Troubles
from journeyman_simulator.faults.operations import Acts
from journeyman_simulator.faults.sandboxes import Outside, Sandboxes, StormContext
from journeyman_simulator.faults.scenario_view import SOMEONE, CloudEvent, CloudInstance, RunError, Waiting
from journeyman_simulator.in_process_account.account import ACCOUNT_ID, REGION, ZONES, InProcessAccount
from journeyman_simulator.in_process_account.ec2_catalogue import SMALL_SELECTION
from journeyman_simulator.in_process_account.sqs_queues import SimulatedMessage
from journeyman_simulator.kube_scheduler import KubeScheduler
from journeyman_simulator.kubelet import Kubelets
from journeyman_simulator.lambda_functions import EventSourceMapping, LambdaFunction, LambdaHandler
from journeyman_simulator.local_forwarder import LocalForwarder
from journeyman_simulator.sam_stack import SamStack, read_template
from journeyman_simulator.workload_controllers import WorkloadControllers
from journeyman_simulator.world import World, WorldStuckError

START: Final = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
MOST_RUNS: Final = 1200
"""A hot loop is there at once; the longest stories, with claims that expire by the minute, take half as many."""
KUBERNETES_VERSION: Final = "1.33"
SERVICE_CIDR: Final = "10.100.0.0/16"


class StormWorld:
    """Everything that a story happens to. A `scene.Scene`."""

    def __init__(
        self,
        story: Story,
        rules: Sequence[type[Rule]],
        on_moment: Callable[[Moment], None] | None = None,
        *,
        most_runs: int = MOST_RUNS,
    ) -> None:
        """Stands at the story's beginning."""
        self.story = story
        self.quiet = False
        self.clock = VirtualClock(START)
        self.coverage = Coverage(stories=1)
        self.history = History(self.clock, current_name, on_moment)
        self.server = ApiServer(self.clock)
        self.server.load(furniture(story.setting))
        self.judges = Judges(self, rules)
        self.server.on_write(self.history.on_write)
        self.server.on_write(self.judges.on_write)
        self._make_account(story.setting)
        self._make_weather(story)
        self._make_functions()
        self._most = Most(most_runs, lambda: self.runs, self._told_of_runs)
        self._world = World(self.clock, self._actors())

    # -- time and weather ---------------------------------------------------------------------------------------------

    def live(self, span: timedelta) -> None:
        """Let that much time pass, or less if a rule is broken.

        Raises:
            WorldStuckError: At some moment somebody was never done.
            EndlessError: Functions run too often.
        """
        self._world.run_for(span, unless=lambda: bool(self.judges.broken))

    def parked_until(self) -> datetime | None:
        """When the next run that stands still goes on; None if there is none."""
        return self._baton.due()

    def calm(self) -> None:
        """From now on nothing goes wrong any more; whatever was broken is whole, and whoever stood still goes on."""
        self.quiet = True
        self._faults.storm = self._messages.storm = False
        self._acts.calm()
        self._baton.release()

    def end(self) -> None:
        """The story is over: runs that stand still die where they are."""
        self._faults.end()
        self._baton.release()

    # -- what may be seen of it -------------------------------------------------------------------------------------

    @property
    def runs(self) -> int:
        """Invocations so far."""
        return sum(sandboxes.runs for sandboxes in self._sandboxes)

    def _told_of_runs(self) -> str:
        """Who ran how often and what woke them last, the busiest first."""
        busiest = sorted((s for s in self._sandboxes if s.runs), key=lambda s: -s.runs)
        return "; ".join(f"{s.step} {s.runs} times, lastly for {_why(s.last)}" for s in busiest)

    def instances(self) -> tuple[CloudInstance, ...]:
        """`scene.Scene.instances`."""
        return self._ledger.instances()

    def waiting(self) -> tuple[Waiting, ...]:
        """`scene.Scene.waiting`."""
        waiting = [
            _waiting(queue, message)
            for name, queue in self._messages.queues.items()
            if queue != Step.INTERRUPT.value
            for message in self._account.queues.known[name].messages
        ]
        return tuple(sorted(waiting, key=lambda w: (w.at, w.step.value)))

    def busy(self) -> tuple[str, ...]:
        """`scene.Scene.busy`."""
        return tuple(run.name for sandboxes in self._sandboxes for run in sandboxes.busy.values())

    def dead_letters(self) -> tuple[str, ...]:
        """`scene.Scene.dead_letters`."""
        names = (url.rsplit("/", 1)[-1] for url in self._stack.dead_letter_urls)
        return tuple(message.body for name in names for message in self._account.queues.known[name].messages)

    # -- what it is made of -----------------------------------------------------------------------------------------

    def _make_account(self, setting: Setting) -> None:
        zones = dict(list(ZONES.items())[: setting.zones])
        types = setting.types or SMALL_SELECTION
        self._account = InProcessAccount(self.clock, types=types, zones=zones, on_event=self._note_cloud_event)
        seeded = self._account.seed(cluster=CLUSTER, kubernetes_version=KUBERNETES_VERSION)
        self._endpoint = seeded.endpoint
        self._machines = Ec2Machines(self._account, CLUSTER)
        prices = self._account.prices
        self._ledger = Ledger(lambda *offering: prices.price(*offering) or 0.0, self._note_instance)
        self._account.instances.observers.append(self._ledger.note)

    def _make_weather(self, story: Story) -> None:
        """Everything that goes wrong, and whoever brings it about."""
        note = self.history.note
        self._baton = Baton(self.clock, threads=story.parks)
        self._faults = Faults(
            [fault for fault in story.faults if isinstance(fault, CallFault)],
            clock=self.clock,
            baton=self._baton,
            coverage=self.coverage,
            note=note,
            thaw=story.setting.thaw,
        )
        message_faults = [fault for fault in story.faults if isinstance(fault, MessageFault)]
        self._messages = MessageFaults(message_faults, self.coverage, note)
        self._account.queues.decide = self._messages.decide
        self._troubles = Troubles(self._machines, self.server, self.clock, self._ledger.never_joining)
        self._skew = SkewedClock(self.clock)
        self._acts = Acts(
            story,
            server=self.server,
            clock=self.clock,
            cloud=Hand(self._account, self._ledger),
            troubles=self._troubles,
            skew=self._skew,
            types=sorted(story.setting.types or SMALL_SELECTION),
            zones=self._account.prices.zones(),
            note=partial(note, who=SOMEONE),
        )

    def _make_functions(self) -> None:
        parameters = {
            "ClusterName": CLUSTER,
            "NodeRoleArn": f"arn:aws:iam::{ACCOUNT_ID}:role/KarpenterNodeRole-{CLUSTER}",
        }
        self._stack = SamStack(self._account, _template(), parameters)
        self._sandboxes: list[Sandboxes] = []
        self._ids = count(1)
        outside = self._outside()
        sandboxes = {step.value: Sandboxes(f"{step.value}.lambda_handler", outside) for step in Step}
        self._sandboxes = [*sandboxes.values()]

        def handler(text: str) -> LambdaHandler:
            return sandboxes.get(text.partition(".")[0], _nobody)

        self._stack.stand_up(handler, self.clock, self._account.queues.due)
        for function in self._stack.functions.values():
            function.fatal, function.new_id, function.context = (Died,), outside.new_id, StormContext
        self._messages.queues = {
            url.rsplit("/", 1)[-1]: name.removesuffix("Queue").lower()
            for name, url in self._stack.queue_urls.items()
            if name.endswith("Queue")
        }

    def _outside(self) -> Outside:
        return Outside(
            environment=_environment(self._stack.variables, self.story.setting, self._endpoint),
            clock=self.clock,
            seen_clock=self._skew,
            server=self.server,
            account=self._account,
            version_at=self.history.version_at,
            faults=self._faults,
            on_error=self._note_error,
            ids=self._ids,
        )

    def _actors(self) -> list[Any]:
        ticker = ScheduleRunner(
            self._account.client("events"),
            self._account.client("scheduler"),
            self.clock,
            self._account.deliver,
            version=self._account.schedule_version,
            new_id=lambda: f"tick-{next(self._ids)}",
        )
        return [
            self._most,
            self._acts,
            WorkloadControllers(self.server.acting_as("kube-controller-manager")),
            KubeScheduler(self.server.acting_as("kube-scheduler"), self.clock),
            Kubelets(self.server.acting_as("kubelet"), self.clock, self._troubles),
            self._account,
            LocalForwarder(self.server, self.clock, CLUSTER, self._forward),
            Minutes(self.clock, self.judges.at_tick),
            *([ticker] if self.story.setting.sweep else []),
            DirectInvocations(self._account, self._stack, self._baton),
            self._baton,
            *(Poller(mapping, self.clock, self._baton) for mapping in self._stack.mappings),
        ]

    def _forward(self, step: Step, body: str, message_id: str) -> None:
        """The forwarder sends to a lane."""
        self._account.client("sqs").send_message(
            QueueUrl=self._stack.queue_urls[f"{step.value.title()}Queue"],
            MessageBody=body,
            MessageGroupId=CLUSTER,
            MessageDeduplicationId=message_id,
        )

    def _note_cloud_event(self, event: Any) -> None:
        self._machines.note(event)

    def _note_instance(self, event: CloudEvent) -> None:
        self.history.note(f"{event.kind} {event.instance.provider_id} {event.instance.state}", event.by)
        self.judges.on_cloud(event)

    def _note_error(self, error: RunError) -> None:
        self.history.note(f"{error.error}: {error.message}")
        self.judges.on_error(error)


def _why(event: dict[str, Any]) -> str:
    """What an event says it is for."""
    return " and ".join(parse_trigger(record).reason for record in event.get("Records", [event])) or "no reason"


def _waiting(queue: str, message: SimulatedMessage) -> Waiting:
    """A message of ours; in the wake queue it says itself for whom it is, and from when on."""
    receivable = datetime.fromtimestamp(message.visible_at / 1000, timezone.utc)
    body = json.loads(message.body)
    at = datetime.fromisoformat(body["at"]) if body.get("at") else receivable
    step = Step(body["step"]) if queue == "wake" else Step(queue)
    return Waiting(step=step, at=max(at, receivable))


def _nobody(_event: dict[str, Any], _context: Any) -> Any:
    raise WorldStuckError("a function was invoked that no story knows")


@cache
def _template() -> dict[str, Any]:
    """template.yaml, read once."""
    return read_template(deployment_file("template.yaml"))


def _environment(variables: dict[str, str], setting: Setting, endpoint: str) -> Environment:
    """The functions' environment: the template's, with the story's settings."""
    registered = {
        "name": CLUSTER,
        "region": REGION,
        "endpoint": endpoint,
        "kubernetesVersion": KUBERNETES_VERSION,
        "serviceCidr": SERVICE_CIDR,
        "access": {"kind": "kubeconfig"},
    }
    gates = {"NodeRepair": setting.node_repair, "SpotToSpotConsolidation": setting.spot_to_spot, "StaticCapacity": True}
    read = read_environment(
        {
            **variables,
            "JOURNEYMAN_CLUSTERS": json.dumps([registered]),
            "FEATURE_GATES": ",".join(f"{name}={str(on).lower()}" for name, on in gates.items()),
        }
    )
    settings = replace(
        read.settings[CLUSTER],
        pod_nomination=setting.pod_nomination,
        registration_poll=timedelta(seconds=setting.registration_poll_seconds),
        drain_poll=timedelta(seconds=setting.drain_poll_seconds),
        instance_poll=timedelta(seconds=setting.instance_poll_seconds),
        registration_timeout=timedelta(seconds=setting.registration_timeout_seconds),
    )
    return replace(read, settings={CLUSTER: settings})


MINUTE: Final = timedelta(minutes=1)


class Poller:
    """An event source mapping whose function may stand still in the middle of a batch."""

    def __init__(self, mapping: EventSourceMapping, clock: Clock, baton: Baton) -> None:
        self._mapping = mapping
        self._clock = clock
        self._baton = baton
        self.due = mapping.due

    def act(self) -> bool:
        """Poll if there is something to receive; True if there was."""
        due = self.due()
        if due is None or due > self._clock.now():
            return False
        self._baton.start(self._mapping.act)
        return True


class DirectInvocations:
    """Schedules that invoke a function without a queue between."""

    def __init__(self, account: InProcessAccount, stack: SamStack, baton: Baton) -> None:
        self._account = account
        self._functions: dict[str, LambdaFunction] = {function.arn: function for function in stack.functions.values()}
        self._baton = baton

    def due(self) -> datetime | None:
        """They come from the ticker."""
        return None

    def act(self) -> bool:
        """Invoke for each delivery that waits; True if there was one."""
        deliveries = self._account.take_deliveries()
        for delivery in deliveries:
            self._baton.start(partial(self._functions[delivery.function_arn].invoke, delivery.event))
        return bool(deliveries)


class EndlessError(JourneymanError):
    """A story goes on and on."""


class Most:
    """Ends a story in which functions run more often than in any that comes to rest.

    Args:
        most: So many runs, of all functions together, are not too many yet.
        runs: How many there were.
        told: Who ran how often, and what woke them last.
    """

    def __init__(self, most: int, runs: Callable[[], int], told: Callable[[], str]) -> None:
        self._most = most
        self._runs = runs
        self._told = told

    def due(self) -> datetime | None:
        """It only looks on."""
        return None

    def act(self) -> bool:
        """Raises EndlessError if there were too many."""
        if self._runs() > self._most:
            raise EndlessError(f"more than {self._most} runs: {self._told()}")
        return False


class Minutes:
    """Asks the judges each minute."""

    def __init__(self, clock: Clock, ask: Callable[[], None]) -> None:
        self._clock = clock
        self._ask = ask
        self._next = clock.now() + MINUTE

    def due(self) -> datetime | None:
        """The next full minute."""
        return self._next

    def act(self) -> bool:
        """Ask, if it is time; that changes nothing."""
        if self._clock.now() >= self._next:
            self._next += MINUTE
            self._ask()
        return False
