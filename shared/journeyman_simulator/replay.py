"""Replays recorded events on a recorded cluster with the deployed handlers, and records their decisions and writes.

Only the handlers run, without kubelets and kube-scheduler, and the clock does not advance. The result lists messages that
a handler sends to its own step as requeues. The account is moto in this process (with EC2's CreateFleet rules), or an
account at an endpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from typing import Any, Final
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError
from localstack_client.config import get_service_endpoints
from localstack_client.session import Session
from msgspec import Struct, field

from journeyman.cloud.aws.pricing import shipped_on_demand
from journeyman.core.api import labels
from journeyman.core.api.objects import EC2NODECLASS, NODECLAIM, NodeClaim
from journeyman.core.plan import Step
from journeyman.errors import ConfigurationError, MalformedEventError
from journeyman.events import parse_trigger
from journeyman.ports import EVERY_CLUSTER, RequeueDue
from journeyman.runtime.composition import installed
from journeyman_simulator.apiserver import ApiServer, Write
from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.deployment_files import deployment_file, load_handler
from journeyman_simulator.lambda_functions import LambdaFunction, LambdaInvocation
from journeyman_simulator.local_aws import REGION, local_runtime
from journeyman_simulator.local_deployment import ACTOR, captured_logs
from journeyman_simulator.moto_account.moto_seed import seed_account
from journeyman_simulator.moto_account.moto_server import MotoAccount, client_for
from journeyman_simulator.sam_stack import ClientSource, SamStack, read_template

JSON = Mapping[str, Any]
KUBERNETES_ENDPOINT: Final = "https://kubernetes.invalid"
DEFAULT_CLUSTER: Final = "demo"
DEFAULT_TIME: Final = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)  # for events without a time
_READ_VERBS: Final = ("Describe", "Get", "List", "Receive")


class CloudCall(Struct, frozen=True, kw_only=True):
    """A request that changes the cloud's state."""

    service: str
    operation: str
    parameters: JSON


class ReplayResult(Struct, kw_only=True):
    """The log lines, writes, cloud calls and requeues that one event caused, each in order."""

    function: str
    invocation: LambdaInvocation | None = None
    log: list[JSON] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    calls: list[CloudCall] = field(default_factory=list)
    requeues: list[JSON] = field(default_factory=list)


class Replay:
    """Replays events on a recorded cluster, one after another; each sees the changes of the earlier ones."""

    def __init__(self, account: Any, objects: Iterable[JSON], *, cluster: str, now: datetime) -> None:
        self.clock = VirtualClock(now)
        self.server = ApiServer(self.clock)
        self._account = _RecordingAccount(account, self._record_call)
        self._cluster = cluster
        self._current = ReplayResult(function="")
        self.server.load(objects)
        self.server.on_write(self._record_write)
        self._variables = SamStack(
            account, read_template(deployment_file("template.yaml")), {"ClusterName": cluster}
        ).variables

    def run(self, event: JSON) -> ReplayResult:
        """Pass the event to its function and return what the function did."""
        name, function_event = event_for_function(event)
        self._current = result = ReplayResult(function=name)
        function = LambdaFunction(name=name, handler=load_handler(f"{name}.lambda_handler"), clock=self.clock)
        runtime = local_runtime(
            self._account,
            self._variables,
            cluster=self._cluster,
            endpoint=KUBERNETES_ENDPOINT,
            store=self.server.acting_as(ACTOR),
            clock=self.clock,
        )
        with captured_logs(result.log.append), installed(runtime):
            result.invocation = function.invoke(dict(function_event))
        return result

    def _record_write(self, write: Write) -> None:
        self._current.writes.append(write)

    def _record_call(self, call: CloudCall) -> None:
        if call.operation == "SendMessageBatch":
            entries = call.parameters.get("Entries", ())
            self._current.requeues += [
                {**json.loads(e["MessageBody"]), "delaySeconds": e.get("DelaySeconds", 0)} for e in entries
            ]
        else:
            self._current.calls.append(call)


@contextmanager
def open_replay(
    events: Iterable[JSON], objects: Iterable[JSON], aws: str
) -> Iterator[tuple[Replay, Mapping[str, str]]]:
    """Create a replay on moto, or on the account at an endpoint.

    Yields:
        The replay, and the simulated account's instance ids by recorded instance id (empty for an endpoint).

    Raises:
        ConfigurationError: `aws` is neither "moto" nor the URL of an endpoint that responds.
    """
    events, objects = list(events), list(objects)
    cluster, now = _cluster_of(events), _time_of(events)
    with ExitStack() as stack:
        if aws != "moto":
            yield _at_endpoint(aws, objects, cluster, now), {}
            return
        account = stack.enter_context(MotoAccount(VirtualClock(now), shipped_on_demand(REGION), region=REGION))
        seed_account(account, cluster=cluster)
        scratch = ApiServer(VirtualClock(now))
        scratch.load(objects)
        create_selected_resources(account, scratch.list(EC2NODECLASS).items)
        new_ids = run_recorded_instances(account, scratch.list(NODECLAIM).items, cluster)
        objects = [with_replaced_ids(o, new_ids) for o in _without_node_class_status(objects)]
        yield Replay(account, objects, cluster=cluster, now=now), new_ids


def _at_endpoint(url: str, objects: Iterable[JSON], cluster: str, now: datetime) -> Replay:
    try:
        return Replay(EndpointAccount(url), objects, cluster=cluster, now=now)
    except BotoCoreError as error:
        raise ConfigurationError(f"no AWS answers at {url}: {error}", to_do="start it, or use --aws moto") from error


def with_replaced_ids(value: Any, names: Mapping[str, str]) -> Any:
    """Return the JSON value with each id in its strings replaced by `names[id]`."""
    if isinstance(value, str):
        for old, new in names.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, Mapping):
        return {key: with_replaced_ids(item, names) for key, item in value.items()}
    return [with_replaced_ids(item, names) for item in value] if isinstance(value, (list, tuple)) else value


def event_for_function(event: JSON) -> tuple[str, JSON]:
    """Return the name of an event's function, and the event in the form that the function receives.

    SQS batches and API requests stay unchanged. A single message becomes an SQS batch; an EventBridge event becomes a batch
    of the interrupt queue, except the scheduled sweep, which invokes its function directly.

    Raises:
        MalformedEventError: No function receives such an event.
    """
    if "Records" in event:
        return _function_of_queue(event), event
    if "requestContext" in event:
        return Step.SWEEP.value if "source" in event else "api", event
    trigger = parse_trigger(event)
    if trigger.step is Step.SWEEP and not isinstance(trigger, RequeueDue):
        return Step.SWEEP.value, event
    return trigger.step.value, {"Records": [_record(event, trigger.step.value)]}


def _function_of_queue(event: JSON) -> str:
    """Return the function whose name is part of the queue's name; sweep for the requeue queue."""
    records: list[JSON] = event["Records"]
    arn = str(records[0].get("eventSourceARN", "")) if records else ""
    for step in Step:
        if step.value in arn:
            return step.value
    if "requeue" in arn:
        return Step.SWEEP.value
    raise MalformedEventError(f"no function polls the queue {arn!r}", to_do="give the record its eventSourceARN")


def _record(event: JSON, queue: str) -> JSON:
    return {
        "messageId": str(event.get("id", "replayed")),
        "receiptHandle": "replayed",
        "body": json.dumps(event),
        "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "0"},
        "messageAttributes": {},
        "md5OfBody": "",
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:123456789012:journeyman-{queue}",
        "awsRegion": REGION,
    }


def _bodies(event: JSON) -> Iterator[JSON]:
    """Yield the valid messages in an event; the handler reports the others."""
    for record in event.get("Records", [event]):
        body = record.get("body", record)
        with suppress(ValueError):
            decoded = json.loads(body) if isinstance(body, str) else body
            if isinstance(decoded, Mapping):
                yield decoded


def _cluster_of(events: Iterable[JSON]) -> str:
    named = [str(body.get("cluster", "")) for event in events for body in _bodies(event)]
    return next((name for name in named if name and name != EVERY_CLUSTER), DEFAULT_CLUSTER)


def _time_of(events: Iterable[JSON]) -> datetime:
    """Return the latest time in the events, so that no event is in the future."""
    times = [_parse_time(str(body.get("time", ""))) for event in events for body in _bodies(event)]
    return max((m for m in times if m is not None), default=DEFAULT_TIME)


def _parse_time(text: str) -> datetime | None:
    with suppress(ValueError):
        return datetime.fromisoformat(text.replace("Z", "+00:00"))
    return None


def _without_node_class_status(objects: Iterable[JSON]) -> list[JSON]:
    """Return the objects, without the status of NodeClasses: it describes another account, and is resolved again."""
    return [{k: v for k, v in o.items() if k != "status"} if o.get("kind") == EC2NODECLASS.kind else o for o in objects]


class _RecordingAccount:
    """An account that records the requests that change its state."""

    def __init__(self, account: Any, record_request: Callable[[CloudCall], None]) -> None:
        self._account = account
        self._record_request = record_request

    def client(self, service: str) -> Any:
        """Return a boto3 client that records the requests that change the account's state."""
        client = self._account.client(service)

        def before(params: JSON, model: Any, **_: Any) -> None:
            if not model.name.startswith(_READ_VERBS):
                self._record_request(CloudCall(service=service, operation=model.name, parameters=dict(params)))

        client.meta.events.register("provide-client-params.*.*", before)
        return client


_ASSUMED_BY_EC2 = '{"Version":"2012-10-17","Statement":[]}'


def create_selected_resources(account: ClientSource, node_classes: Iterable[JSON]) -> None:
    """Tag subnets and a security group so that the NodeClasses select them, and create their roles. Safe to repeat."""
    ec2, iam = account.client("ec2"), account.client("iam")
    subnets = [s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]]
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    for node_class in node_classes:
        spec = node_class["spec"]
        for term in spec.get("subnetSelectorTerms", ()):
            _tag(ec2, subnets, term.get("tags", {}))
        for term in spec.get("securityGroupSelectorTerms", ()):
            _tag(ec2, [group], term.get("tags", {}))
        if spec.get("role"):
            _ensure_role(iam, spec["role"])


def run_recorded_instances(account: ClientSource, claims: Iterable[NodeClaim], cluster: str) -> dict[str, str]:
    """Run a tagged instance for each launched NodeClaim.

    Returns:
        The ids of the new instances by the instance id in the claim's status, since EC2 assigns new ids.
    """
    ec2 = account.client("ec2")
    subnet_of = {s["AvailabilityZone"]: s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]}
    image = ec2.describe_images()["Images"][0]["ImageId"]
    new_ids: dict[str, str] = {}
    for claim in sorted(claims, key=lambda c: c.metadata.name):
        recorded_id = claim.status.provider_id.rsplit("/", 1)[-1]
        zone = claim.metadata.labels.get(labels.ZONE, "")
        if not recorded_id or zone not in subnet_of:
            continue
        new_ids[recorded_id] = _run(ec2, claim, image=image, subnet=subnet_of[zone], cluster=cluster)
    return new_ids


def _run(ec2: Any, claim: NodeClaim, *, image: str, subnet: str, cluster: str) -> str:
    claim_labels = claim.metadata.labels
    tags = {
        "eks:eks-cluster-name": cluster,
        f"kubernetes.io/cluster/{cluster}": "owned",
        labels.NODEPOOL: claim_labels.get(labels.NODEPOOL, ""),
        f"{labels.AWS_GROUP}/ec2nodeclass": claim.spec.node_class_ref.name,
        labels.NODECLAIM_TAG: claim.metadata.name,
        f"{labels.OWN_GROUP}/nodeclaim-uid": claim.metadata.uid,
    }
    spot = (
        {"InstanceMarketOptions": {"MarketType": "spot"}}
        if claim_labels.get(labels.CAPACITY_TYPE) == labels.SPOT
        else {}
    )
    answer = ec2.run_instances(
        ImageId=image,
        InstanceType=claim_labels.get(labels.INSTANCE_TYPE, "m5.large"),
        SubnetId=subnet,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in sorted(tags.items())]}
        ],
        **spot,
    )
    return str(answer["Instances"][0]["InstanceId"])


def _tag(ec2: Any, resources: list[str], tags: JSON) -> None:
    if tags:
        pairs = [{"Key": key, "Value": "" if value == "*" else value} for key, value in sorted(tags.items())]
        ec2.create_tags(Resources=resources, Tags=pairs)


def _ensure_role(iam: Any, name: str) -> None:
    try:
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=_ASSUMED_BY_EC2)
    except iam.exceptions.EntityAlreadyExistsException:
        return


class EndpointAccount:
    """Makes clients for an endpoint, with localstack-client.

    The test credentials select the endpoint's default account. The endpoint's rules may differ from AWS's: an unextended
    moto's CreateFleet, for example, always uses the first override.
    """

    account = "000000000000"

    def __init__(self, endpoint_url: str, region: str = "us-east-1") -> None:
        parts = urlsplit(endpoint_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigurationError(
                f"{endpoint_url!r} is no endpoint", to_do="give it the form http://localhost:4566, or 'moto'"
            )
        self.endpoint_url = endpoint_url
        self.region = region
        host = f"{parts.hostname}:{parts.port or 4566}"
        self._session = Session(region_name=region, localstack_host=host)
        self._known_services = frozenset(get_service_endpoints(localstack_host=host))

    def client(self, service: str) -> Any:
        """Return a boto3 client; a service that localstack-client does not support gets a plain client of the endpoint."""
        if service in self._known_services:
            return self._session.client(service)
        return client_for(self.endpoint_url, service, region=self.region)
