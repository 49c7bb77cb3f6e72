"""Tells a story of faults: the deployed application on a simulated cluster and account, through a storm and into the quiet.

The template is stood up, the handlers are those that are deployed, the AWS adapter is the real one. Nothing here is drawn:
the same story has the same history, to the last byte of every write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from itertools import count
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from journeyman.core.api.conditions import INITIALIZED
from journeyman.core.api.objects import NODE, NODE_DISRUPTION, NODECLAIM, NODEPOOL, POD, is_true
from journeyman.core.plan import Step
from journeyman.runtime.checkout import found
from journeyman.runtime.environment import Environment, read_environment
from journeyman.runtime.local_forwarder import LocalForwarder
from journeyman.runtime.sandboxes import Outside, Sandboxes, StormContext, silenced
from journeyman.simulate.account.account import ACCOUNT_ID, REGION, ZONES, Account
from journeyman.simulate.account.queues import Message
from journeyman.simulate.account.types import SMALL_SELECTION
from journeyman.simulate.apiserver import ApiServer
from journeyman.simulate.aws.event_source import EventSourceMapping, Function
from journeyman.simulate.aws.machines import Ec2Machines
from journeyman.simulate.aws.stack import Stack, read_template
from journeyman.simulate.aws.ticker import Ticker
from journeyman.simulate.clock import SkewedClock, VirtualClock
from journeyman.simulate.faults.acts import Acts
from journeyman.simulate.faults.baton import Baton
from journeyman.simulate.faults.coverage import Coverage
from journeyman.simulate.faults.hand import Hand
from journeyman.simulate.faults.history import History, Moment
from journeyman.simulate.faults.injector import Died, Faults, current_name
from journeyman.simulate.faults.ledger import Ledger
from journeyman.simulate.faults.manifests import CLUSTER, NAMESPACE, furniture
from journeyman.simulate.faults.messages import MessageFaults
from journeyman.simulate.faults.rules import Broken, Judges, Rule
from journeyman.simulate.faults.scene import SOMEONE, CloudInstance, RunError, Waiting
from journeyman.simulate.faults.story import CallFault, MessageFault, Setting, Story
from journeyman.simulate.faults.troubles import Troubles
from journeyman.simulate.kube_scheduler import KubeScheduler
from journeyman.simulate.kubelet import Kubelets
from journeyman.simulate.workloads import DEPLOYMENT, Workloads
from journeyman.simulate.world import World, WorldStuckError

START: Final = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
KUBERNETES_VERSION: Final = "1.33"
SERVICE_CIDR: Final = "10.100.0.0/16"
STORM_AFTER_LAST_ACT: Final = timedelta(seconds=90)
MINUTE: Final = timedelta(minutes=1)
REST_MINUTES: Final = 3
"""So long nothing may change until the cluster counts as at rest: longer than any period in which steps look by themselves."""
PATIENCE_MINUTES: Final = 8
"""So long instead while pods wait: longer than the cloud's refusals are remembered."""
LONGEST_QUIET: Final = timedelta(minutes=45)
STUCK: Final = "nothing is stuck"
LEFT: Final = "nothing is left"
_UNENDED: Final = frozenset({"", "Proposed", "Executing"})


class Told(Struct, frozen=True, kw_only=True):
    """What came of a story."""

    story: Story
    broken: tuple[Broken, ...]
    coverage: Coverage
    digest: str
    history: tuple[Moment, ...]
    runs: int
    minutes: float  # of virtual time


def tell(story: Story, *, rules: Sequence[type[Rule]] = (), on_moment: Callable[[Moment], None] | None = None) -> Told:
    """Tell a story from beginning to end, or until a rule is broken.

    Args:
        story: What happens.
        rules: Who looks on.
        on_moment: Is told of everything that happens, at once.
    """
    with silenced():
        world = StormWorld(story, rules, on_moment)
        try:
            world.play()
        finally:
            world.end()
    return Told(
        story=story,
        broken=tuple(world.judges.broken),
        coverage=world.coverage,
        digest=world.history.digest,
        history=tuple(world.history.moments),
        runs=world.runs,
        minutes=(world.clock.now() - START) / MINUTE,
    )


class StormWorld:
    """Everything that a story happens to. A `scene.Scene`."""

    def __init__(
        self, story: Story, rules: Sequence[type[Rule]], on_moment: Callable[[Moment], None] | None = None
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
        self._make_functions()
        self._world = World(self.clock, self._actors())

    # -- the story --------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Through the storm, into the quiet, to the end."""
        try:
            self._storm()
            self._calm()
            self._come_to_rest()
            if self.story.setting.ends_empty:
                self._empty()
        except WorldStuckError as error:
            self.judges.report(STUCK, str(error))

    def end(self) -> None:
        """Nobody goes on; runs that stand still die where they are."""
        self._faults.end()
        self._baton.release()

    def _storm(self) -> None:
        last = max((act.at_seconds for act in self.story.acts), default=0.0)
        self._live(timedelta(seconds=last) + STORM_AFTER_LAST_ACT)
        while (due := self._baton.due()) is not None and not self.judges.broken:
            self._live(due - self.clock.now())

    def _calm(self) -> None:
        """Nothing goes wrong any more; whoever stood still goes on."""
        if self.judges.broken:
            return
        self.quiet = True
        self.history.note("the storm is over", "story")
        self._faults.storm = self._messages.storm = False
        self._acts.calm()
        self._baton.release()

    def _come_to_rest(self) -> None:
        ends_at = self.clock.now() + LONGEST_QUIET
        before, unchanged = self._state(), 0
        while not self.judges.broken:
            self._live(MINUTE)
            now = self._state()
            before, unchanged = now, unchanged + 1 if now == before else 0
            if unchanged >= (PATIENCE_MINUTES if self._waiting_pods() else REST_MINUTES) and not self._unfinished():
                self.history.note("at rest", "story")
                self.judges.at_rest()
                return
            if self.clock.now() >= ends_at:
                self.judges.report(
                    STUCK, f"it never came to rest: {', '.join(self._unfinished()) or 'it goes on and on'}"
                )

    def _empty(self) -> None:
        """People take everything away: pods go, then pools, and whatever was ours must go by itself."""
        if self.judges.broken:
            return
        self.history.note("everything is taken away", "story")
        someone = self.server.acting_as(SOMEONE)
        for resource, namespace in ((DEPLOYMENT, NAMESPACE), (NODEPOOL, "")):
            for item in self.server.list(resource).items:
                someone.delete(resource, item["metadata"]["name"], namespace=namespace)
        self._come_to_rest()
        for left in self._leftovers():
            self.judges.report(LEFT, left)

    def _leftovers(self) -> Iterator[str]:
        yield from (f"NodeClaim {claim.metadata.name} is there" for claim in self.server.list(NODECLAIM).items)
        yield from (f"Node {node.metadata.name} is there" for node in self.server.list(NODE).items)
        yield from (f"instance {i.provider_id} is {i.state}" for i in self.instances() if i.runs)

    def _live(self, span: timedelta) -> None:
        """Let that much time pass, or less if a rule is broken."""
        end = self.clock.now() + span
        try:
            self._world.run_until(lambda: bool(self.judges.broken), within=span, waiting_for="a broken rule")
        except WorldStuckError:
            if self.judges.broken or self.clock.now() > end:
                raise
            self._world.run_for(end - self.clock.now())

    # -- what may be seen of it -------------------------------------------------------------------------------------

    @property
    def runs(self) -> int:
        """Invocations so far."""
        return sum(sandboxes.runs for sandboxes in self._sandboxes)

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

    def _state(self) -> list[object]:
        """What changes as long as anybody is busy, without the moments at which it did."""
        claims = [
            (c.metadata.name, bool(c.metadata.deletion_timestamp), [(x.type, x.status) for x in c.status.conditions])
            for c in self.server.list(NODECLAIM).items
        ]
        nodes = [
            (n.metadata.name, bool(n.metadata.deletion_timestamp), [(t.key, t.value) for t in n.spec.taints])
            for n in self.server.list(NODE).items
        ]
        pods = [(p.key, p.status.phase, p.spec.node_name) for p in self.server.list(POD).items]
        commands = [(d["metadata"]["name"], _phase(d)) for d in self.server.list(NODE_DISRUPTION).items]
        return [claims, nodes, pods, commands]

    def _unfinished(self) -> list[str]:
        """Who is still on the way, by name."""
        claims = self.server.list(NODECLAIM).items
        leaving = [*claims, *self.server.list(NODE).items, *self.server.list(POD).items]
        return [
            *(f"{type(o).__name__} {o.metadata.name} is leaving" for o in leaving if o.metadata.deletion_timestamp),
            *(
                f"NodeClaim {c.metadata.name} is not initialized"
                for c in claims
                if not is_true(c.status.conditions, INITIALIZED)
            ),
            *(
                f"NodeDisruption {d['metadata']['name']} has not ended"
                for d in self.server.list(NODE_DISRUPTION).items
                if _phase(d) in _UNENDED
            ),
            *(f"{run} stands still" for run in self.busy()),
        ]

    def _waiting_pods(self) -> bool:
        return any(pod.status.phase == "Pending" for pod in self.server.list(POD).items)

    # -- what it is made of -----------------------------------------------------------------------------------------

    def _make_account(self, setting: Setting) -> None:
        zones = dict(list(ZONES.items())[: setting.zones])
        types = setting.types or SMALL_SELECTION
        self._account = Account(self.clock, types=types, zones=zones, on_event=self._note_cloud_event)
        seeded = self._account.seed(cluster=CLUSTER, kubernetes_version=KUBERNETES_VERSION)
        self._endpoint = seeded.endpoint
        self._machines = Ec2Machines(self._account, CLUSTER)
        prices = self._account.prices
        self._ledger = Ledger(lambda *offering: prices.price(*offering) or 0.0, self._note_instance)
        self._account.instances.observers.append(self._ledger.note)
        self._baton = Baton(self.clock, threads=self.story.parks)
        self._faults = Faults(
            [fault for fault in self.story.faults if isinstance(fault, CallFault)],
            clock=self.clock,
            baton=self._baton,
            coverage=self.coverage,
            note=self.history.note,
            thaw=setting.thaw,
        )
        self._messages = MessageFaults(
            [fault for fault in self.story.faults if isinstance(fault, MessageFault)], self.coverage, self.history.note
        )
        self._account.queues.decide = self._messages.decide
        self._troubles = Troubles(self._machines, self.server, self.clock, self._ledger.never_joining)
        self._skew = SkewedClock(self.clock)
        self._acts = Acts(
            self.story,
            server=self.server,
            clock=self.clock,
            cloud=Hand(self._account, self._ledger),
            troubles=self._troubles,
            skew=self._skew,
            types=sorted(types),
            zones=sorted(zones),
            note=partial(self.history.note, who=SOMEONE),
        )

    def _make_functions(self) -> None:
        parameters = {
            "ClusterName": CLUSTER,
            "NodeRoleArn": f"arn:aws:iam::{ACCOUNT_ID}:role/KarpenterNodeRole-{CLUSTER}",
        }
        self._stack = Stack(self._account, _template(), parameters)
        self._sandboxes: list[Sandboxes] = []
        self._ids = count(1)
        outside = self._outside()
        sandboxes = {step.value: Sandboxes(f"{step.value}.lambda_handler", outside) for step in Step}
        self._sandboxes = [*sandboxes.values()]

        def handler(text: str) -> Callable[[dict[str, Any], Any], Any]:
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
        ticker = Ticker(
            self._account.client("events"),
            self._account.client("scheduler"),
            self.clock,
            self._account.deliver,
            version=self._account.schedule_version,
            new_id=lambda: f"tick-{next(self._ids)}",
        )
        return [
            self._acts,
            Workloads(self.server.acting_as("kube-controller-manager")),
            KubeScheduler(self.server.acting_as("kube-scheduler"), self.clock),
            Kubelets(self.server.acting_as("kubelet"), self.clock, self._troubles),
            self._account,
            LocalForwarder(self.server, self.clock, CLUSTER, self._forward),
            _Minutes(self.clock, self.judges.at_tick),
            *([ticker] if self.story.setting.sweep else []),
            _Schedules(self._account, self._stack, self._baton),
            self._baton,
            *(_Poller(mapping, self.clock, self._baton) for mapping in self._stack.mappings),
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

    def _note_instance(self, event: Any) -> None:
        self.history.note(f"{event.kind} {event.instance.provider_id} {event.instance.state}", event.by)
        self.judges.on_cloud(event)

    def _note_error(self, error: RunError) -> None:
        self.history.note(f"{error.error}: {error.message}")
        self.judges.on_error(error)


class _Poller:
    """An event source mapping whose function may stand still in the middle of a batch. An `Actor`."""

    def __init__(self, mapping: EventSourceMapping, clock: VirtualClock, baton: Baton) -> None:
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


class _Schedules:
    """Schedules that invoke a function without a queue between. An `Actor`."""

    def __init__(self, account: Account, stack: Stack, baton: Baton) -> None:
        self._account = account
        self._functions: dict[str, Function] = {function.arn: function for function in stack.functions.values()}
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


class _Minutes:
    """Asks the judges each minute. An `Actor`."""

    def __init__(self, clock: VirtualClock, ask: Callable[[], None]) -> None:
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


def _waiting(queue: str, message: Message) -> Waiting:
    """A message of ours; in the wake queue it says itself for whom it is, and from when on."""
    receivable = START.fromtimestamp(message.visible_at / 1000, timezone.utc)
    body = json.loads(message.body)
    at = datetime.fromisoformat(body["at"]) if body.get("at") else receivable
    step = Step(body["step"]) if queue == "wake" else Step(queue)
    return Waiting(step=step, at=max(at, receivable))


def _phase(command: dict[str, Any]) -> str:
    return str((command.get("status") or {}).get("phase", ""))


def _nobody(_event: dict[str, Any], _context: Any) -> Any:
    raise WorldStuckError("a function was invoked that no story knows")


@cache
def _template() -> dict[str, Any]:
    """template.yaml, read once."""
    return read_template(found("template.yaml"))


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
        registration_poll=timedelta(seconds=setting.registration_poll_seconds),
        registration_timeout=timedelta(seconds=setting.registration_timeout_seconds),
    )
    return replace(read, settings={CLUSTER: settings})
