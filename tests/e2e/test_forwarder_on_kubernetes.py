"""The forwarder on a real API server with a real kube-scheduler, as its service account in a cluster.

It sends its events over HTTPS to the API function's handler, which reviews the sender's token on the same API server and
sends a message to a queue. Forwarder, TLS, token, TokenReview and handler are the deployed ones; the queue is moto's.
"""

import base64
import json
import ssl
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
import urllib3

from functions.aws.api import lambda_handler
from infra.forwarder.forwarder import Forwarder
from infra.forwarder.https_sink import HttpsSink
from infra.forwarder.notifications import Batcher, NotifiedStep
from infra.forwarder.observability import BYTES, MESSAGES, WATCHES, Metrics
from infra.forwarder.watched_objects import NodeClaimResource, NodeResource
from infra.forwarder.watcher import read_pages
from journeyman.errors import JourneymanError
from journeyman.events import parse_trigger
from journeyman.kube.connection_pool import Connection, client_context
from journeyman.kube.http_store import HttpKubeStore
from journeyman.kube.transport import Transport
from journeyman.runtime.adapters import SystemClock
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.composition import Runtime, installed
from journeyman.runtime.environment import read_environment
from journeyman_simulator.moto_account.moto_server import MotoAccount
from tests.controlplane.certificates import Authority
from tests.controlplane.manifests import install_crds
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("forwarder")]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
POOLS = "/apis/karpenter.sh/v1/nodepools"
CLASSES = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
FORWARDER = [
    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": ["karpenter.sh"], "resources": ["nodeclaims", "nodepools"], "verbs": ["list", "watch"]},
    {"apiGroups": ["karpenter.k8s.aws"], "resources": ["ec2nodeclasses"], "verbs": ["list", "watch"]},
]
FUNCTION = [{"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}]


@pytest.fixture(scope="module")
def plane(make_control_plane):
    with make_control_plane(scheduler=True) as running:
        install_chart_objects(running.admin)
        yield running


def install_chart_objects(admin):
    """Create the default namespace, and the chart's objects that these tests need."""
    for namespace in ("default", "journeyman"):
        admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})  # default may exist
    install_crds(admin)
    account = {"kind": "ServiceAccount", "name": "forwarder", "namespace": "journeyman"}
    user = {"kind": "User", "name": "functions", "apiGroup": "rbac.authorization.k8s.io"}
    for name, rules, subject in (("forwarder", FORWARDER, account), ("receiver", FUNCTION, user)):
        admin.do("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
        bound = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        admin.do("POST", f"{RBAC}/clusterrolebindings", bound)
    for name in ("forwarder", "stranger"):
        admin.do("POST", "/api/v1/namespaces/journeyman/serviceaccounts", {"metadata": {"name": name}})


class Gateway:
    """An HTTPS server that invokes the deployed handler, as API Gateway does."""

    def __init__(self, context):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                answer = lambda_handler(proxied(self.path, dict(self.headers), body), CONTEXT)
                text = answer["body"].encode()
                self.send_response(answer["statusCode"])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                """Write no log line; tests assert on the responses."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


CONTEXT = SimpleNamespace(
    aws_request_id="r", function_name="api", memory_limit_in_mb=1769, invoked_function_arn="arn:aws:lambda:::api",
    get_remaining_time_in_millis=lambda: 29_000,
)  # fmt: skip


def proxied(path, headers, body):
    """Return the event of a REST API's Lambda proxy integration."""
    return {
        "resource": "/clusters/{name}/events", "path": path, "httpMethod": "POST", "headers": headers,
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "queryStringParameters": None, "multiValueQueryStringParameters": None, "stageVariables": None,
        "pathParameters": {"name": unquote(path.split("/")[-2])}, "body": body, "isBase64Encoded": False,
        "requestContext": {
            "resourcePath": "/clusters/{name}/events", "httpMethod": "POST", "requestId": "r", "path": path,
            "identity": {"sourceIp": "127.0.0.1"}, "stage": "v1",
        },
    }  # fmt: skip


class ReceiverEnvironment:
    """The receiver with its queues, and forwarders and tokens that send it events."""

    def __init__(self, plane, stack, folder):
        self.plane, self.admin, self._stack, self.folder = plane, plane.admin, stack, folder
        aws = stack.enter_context(MotoAccount(SystemClock(), {}))
        self._sqs = aws.client("sqs")
        self._queues = {step: self._queue(f"{step}.fifo") for step in ("provision", "terminate", "consolidate")}
        variables = {f"JOURNEYMAN_{step.upper()}_QUEUE_URL": url for step, url in self._queues.items()}
        clusters = [
            {"name": name, "region": "us-east-1", "access": {"kind": "kubeconfig"}} for name in ("dev", "other")
        ]
        environment = read_environment(
            {**variables, "JOURNEYMAN_REQUEUE_QUEUE_URL": "unused", "JOURNEYMAN_CLUSTERS": json.dumps(clusters)}
        )
        adapters = AwsAdapters(environment, stores=self._store, clients=lambda service, _: aws.client(service))
        stack.enter_context(installed(Runtime(environment.settings, adapters)))
        self._authority = Authority(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._authority.issue("receiver"))
        self._gateway = Gateway(context)
        stack.callback(self._gateway.close)
        self._http = urllib3.PoolManager(ca_certs=str(self._authority.certificate), retries=False)
        self.metrics = Metrics()

    def _queue(self, name):
        return self._sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]

    def _store(self, settings):
        """Return the store of a cluster: `dev` is the control plane, `other` is unreachable."""
        token = self.plane.token_for("functions")
        trust = client_context(ca_file=str(self.plane.ca_file))
        server = self.plane.server if settings.cluster_name == "dev" else "https://127.0.0.1:9"
        return HttpKubeStore(
            Transport(Connection(server=server, ssl_context=trust, authorization=lambda: f"Bearer {token}"))
        )

    def transport(self, token):
        """Return a transport that sends a token to the API server."""
        context = client_context(ca_file=str(self.plane.ca_file))
        connection = Connection(server=self.plane.server, ssl_context=context, authorization=lambda: f"Bearer {token}")
        return Transport(connection)

    def token(self, *audiences, account="forwarder"):
        """Return a service account token as kubelet projects it."""
        path = f"/api/v1/namespaces/journeyman/serviceaccounts/{account}/token"
        request = {"spec": {"audiences": list(audiences), "expirationSeconds": 600}}
        return self.admin.do("POST", path, request)["status"]["token"]

    def forward(self):
        """Start a forwarder with short batch windows and wait for its first lists."""
        token_file, own = self.folder / "token", self.token()
        token_file.write_text(self.token("journeyman"))
        transport = self.transport(own)
        url = f"{self._gateway.url}/clusters/dev/events"
        sink = HttpsSink(url, token_file, ca_file=str(self._authority.certificate))
        forwarder = Forwarder(
            "dev", transport, sink, batcher=Batcher(0.3, 1.5), metrics=self.metrics, first_pause_seconds=0.1
        )  # fmt: skip
        self._stack.callback(forwarder.stop, 1.0)
        forwarder.start()
        wait_until(lambda: forwarder.is_ready, "the forwarder does not get ready")
        return forwarder

    def post(self, body, token, *, cluster="dev"):
        """Send an event to the receiver; return the response's status and body."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        text = body if isinstance(body, str) else json.dumps(body)
        answer = self._http.request(
            "POST", f"{self._gateway.url}/clusters/{cluster}/events", body=text, headers=headers
        )
        return answer.status, answer.json()

    def next_reason(self, step=NotifiedStep.PROVISION, seconds=20.0):
        """Return the reason of the next message in a queue; None if there is none in time."""
        url, end = self._queues[step.value], time.monotonic() + seconds
        while time.monotonic() < end:
            for message in self._sqs.receive_message(QueueUrl=url).get("Messages", []):
                self._sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                trigger = parse_trigger(json.loads(message["Body"]))
                assert (trigger.cluster, trigger.step.value) == ("dev", step.value)
                return trigger.reason
            time.sleep(0.02)
        return None

    def pod(self, name):
        """Create a pod that kube-scheduler cannot bind."""
        container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
        self.admin.do("POST", PODS, {"metadata": {"name": name}, "spec": {"containers": [container]}})

    def clear(self):
        """Delete all objects."""
        for path in (PODS, "/api/v1/nodes", CLAIMS, POOLS, CLASSES):
            # after an outage the API server opens its storage again
            wait_until(lambda path=path: self.admin.call("GET", path)[0] == 200, f"{path} is not served")
            for item in self.admin.do("GET", path)["items"]:
                name = item["metadata"]["name"]
                if item["metadata"].get("finalizers"):
                    self.admin.do("PATCH", f"{path}/{name}", {"metadata": {"finalizers": None}}, kind=MERGE)
                self.admin.call("DELETE", f"{path}/{name}", {"gracePeriodSeconds": 0})


@pytest.fixture
def env(plane, tmp_path, monkeypatch):
    monkeypatch.setenv("FORWARDER_SERVICE_ACCOUNT", "journeyman/forwarder")
    with ExitStack() as stack:
        created = ReceiverEnvironment(plane, stack, tmp_path)
        stack.callback(created.clear)
        yield created


def test_unschedulable_pods_requeue_provision_through_the_receiver(env):
    """Each burst sends one message."""
    env.forward()
    for name in ("a", "b", "c"):
        env.pod(name)
    assert env.next_reason() == "3 pods are unschedulable"
    env.pod("d")
    assert env.next_reason() == "4 pods are unschedulable"
    assert env.next_reason(seconds=0.8) is None


def test_nodes_are_table_rows_and_nodeclaims_are_metadata(env):
    """Each change sends a message, and the forwarder reads few bytes of a node of 15 kB."""
    env.forward()
    images = [{"names": [f"registry.example.org/{i}@sha256:{'0' * 64}"], "sizeBytes": 1} for i in range(150)]
    metadata = {"name": "n1", "finalizers": ["karpenter.sh/termination"]}
    node = env.admin.do("POST", "/api/v1/nodes", {"metadata": metadata, "status": {"images": images}})
    size = len(json.dumps(node))
    assert env.next_reason() == "1 node joined"
    for status, step, reason in (
        ("True", NotifiedStep.PROVISION, "1 node became ready"),
        ("False", NotifiedStep.TERMINATE, "1 node is no longer ready"),
    ):
        ready = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        env.admin.do("PATCH", "/api/v1/nodes/n1/status", ready, kind=MERGE)
        assert env.next_reason(step) == reason
    assert size > 15_000
    # The creation and two changes are a row each; the column descriptions take 3 kB for each list and watch.
    assert env.metrics.value(BYTES, resource="nodes") < size
    env.admin.do("DELETE", "/api/v1/nodes/n1")
    assert env.next_reason(NotifiedStep.TERMINATE) == "1 node is being deleted"
    env.admin.do("PATCH", "/api/v1/nodes/n1", {"metadata": {"finalizers": None}}, kind=MERGE)
    assert (env.next_reason(), env.next_reason(NotifiedStep.TERMINATE)) == ("1 node is gone", "1 node is gone")

    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    metadata = {"name": "c1", "labels": {"karpenter.sh/nodepool": "p"}, "finalizers": ["karpenter.sh/termination"]}
    claim = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata}
    env.admin.do("POST", CLAIMS, {**claim, "spec": {"nodeClassRef": reference, "requirements": []}})
    env.admin.do("DELETE", f"{CLAIMS}/c1")
    assert env.next_reason(NotifiedStep.TERMINATE) == "1 NodeClaim is being deleted"
    env.admin.do("PATCH", f"{CLAIMS}/c1", {"metadata": {"finalizers": None}}, kind=MERGE)
    assert env.next_reason() == "1 NodeClaim is gone"


def test_changed_nodepools_and_nodeclasses_requeue_provision(env):
    """A creation, a change and a deletion send a message each; a change of status or annotations sends none."""
    env.forward()
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    template = {"spec": {"nodeClassRef": reference, "requirements": []}}
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "p"}}
    env.admin.do("POST", POOLS, {**pool, "spec": {"template": template, "limits": {"cpu": "1"}}})
    assert env.next_reason() == "1 NodePool is new or changed"
    env.admin.do("PATCH", f"{POOLS}/p/status", {"status": {"nodes": 3}}, kind=MERGE)
    env.admin.do("PATCH", f"{POOLS}/p", {"metadata": {"annotations": {"seen": "yes"}}}, kind=MERGE)
    assert env.next_reason(seconds=0.8) is None
    env.admin.do("PATCH", f"{POOLS}/p", {"spec": {"limits": {"cpu": "2"}}}, kind=MERGE)
    assert env.next_reason() == "1 NodePool is new or changed"

    metadata = {"name": "c", "finalizers": ["karpenter.k8s.aws/termination"]}
    spec = {
        "role": "nodes", "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "subnetSelectorTerms": [{"id": "subnet-1"}], "securityGroupSelectorTerms": [{"id": "sg-1"}],
    }  # fmt: skip
    class_ = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": metadata, "spec": spec}
    env.admin.do("POST", CLASSES, class_)
    assert env.next_reason() == "1 NodeClass is new or changed"
    env.admin.do("DELETE", f"{CLASSES}/c")
    assert env.next_reason() == "1 NodeClass is new or changed"


def test_outage_of_the_api_server_loses_and_repeats_nothing(env):
    """Even if the watch history has expired, only the new pod sends a message."""
    forwarder = env.forward()
    env.pod("before")
    assert env.next_reason() == "1 pod is unschedulable"
    env.plane.compact_history()
    wait_until(lambda: env.metrics.value(WATCHES, resource="pods", outcome="failed"), "no watch failed")
    assert forwarder.is_live
    env.pod("after")

    assert env.next_reason(seconds=40) == "2 pods are unschedulable"
    assert env.next_reason(seconds=1.0) is None


def test_message_is_kept_while_the_receiver_rejects_it(env, monkeypatch):
    """A wrong audience in the receiver's settings delays the message, but does not lose it."""
    monkeypatch.setenv("FORWARDER_AUDIENCE", "another-audience")
    env.forward()
    env.pod("patient")
    refused = {"step": "provision", "sink": "https", "outcome": "failed"}
    wait_until(lambda: env.metrics.value(MESSAGES, **refused), "nothing failed to be sent")
    assert env.next_reason(seconds=0.3) is None
    (env.folder / "token").write_text(env.token("another-audience"))  # as kubelet does once the volume is corrected

    assert env.next_reason() == "1 pod is unschedulable"
    assert env.next_reason(seconds=0.5) is None


def event(**changes):
    now = SystemClock().now().isoformat()
    return {"version": "1", "source": "forwarder", "id": "e-1", "time": now, "cluster": "dev", "reason": "r", **changes}


def forged_token(**claims):
    """Return a token with the right claims and an invalid signature."""
    payload = {
        "sub": "system:serviceaccount:journeyman:forwarder",
        "aud": ["journeyman"],
        "exp": time.time() + 600,
        **claims,
    }
    parts = ({"alg": "RS256", "kid": "k"}, payload)
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "c2lnbmF0dXJl"])


def test_receiver_accepts_the_forwarders_token_only(env):
    """It rejects tokens of other accounts or audiences and forged ones; the response reveals no cluster."""
    good = env.token("journeyman")
    tokens = {
        "none": "", "nonsense": "not-a-token", "too long": "a.b.c" * 5000,
        "the forwarder's, for the API server": env.token(), "a stranger's": env.token("journeyman", account="stranger"),
        "forged": forged_token(), "expired": forged_token(exp=1.0), "an administrator's": env.plane.token,
    }  # fmt: skip
    answers = {name: env.post(event(), token) for name, token in tokens.items()}
    answers["for a cluster that is not registered"] = env.post(event(cluster="elsewhere"), good, cluster="elsewhere")

    refused = (401, {"error": "Refused", "message": "the sender is not authenticated"})
    assert answers == dict.fromkeys(answers, refused)
    assert env.next_reason(seconds=0.2) is None
    assert env.post(event(), good) == (202, {"cluster": "dev", "step": "provision", "status": "sent"})
    assert env.next_reason() == "r"


def test_receiver_accepts_recent_small_events_of_this_cluster_once(env):
    """It ignores repeated events and rejects old, foreign, invalid and large ones."""
    token, late = env.token("journeyman"), SystemClock().now() - timedelta(minutes=6)
    assert [env.post(event(step="terminate"), token)[1]["status"] for _ in range(3)] == ["sent", "known", "known"]
    assert (env.next_reason(NotifiedStep.TERMINATE), env.next_reason(NotifiedStep.TERMINATE, 0.3)) == ("r", None)

    refused = {
        "old": env.post(event(time=late.isoformat()), token),
        "of another cluster": env.post(event(cluster="other"), token),
        "of another source": env.post(event(source="requeue", step="provision"), token),
        "no event": env.post("[]", token),
        "no JSON": env.post("{", token),
        "large": env.post(event(reason="x" * 10_000), token),
    }
    assert {name: status for name, (status, _) in refused.items()} == {**dict.fromkeys(refused, 400), "large": 413}
    assert env.next_reason(seconds=0.2) is None


def test_unreachable_cluster_rejects_events(env):
    """The receiver answers 503, so that the forwarder retries."""
    answer = env.post(event(cluster="other"), env.token("journeyman"), cluster="other")

    assert answer == (503, {"error": "Unavailable", "message": "try again later"})
    assert env.next_reason(seconds=0.2) is None


def test_missing_right_or_kind_is_named_with_the_remedy(env):
    """The error message names them."""

    class Unknown(NodeClaimResource):
        path = "/apis/karpenter.sh/v1/nothings"

    for token, resource, remedy in (
        (env.plane.token, Unknown(), "does not serve nothings .*install the CRDs"),
        (env.token(account="stranger"), NodeResource(), "cannot list resource.*/api/v1/nodes.*ClusterRole"),
        ("wrong", NodeResource(), "does not accept this identity.*/api/v1/nodes.*token"),
    ):
        with pytest.raises(JourneymanError, match=remedy):
            next(read_pages(env.transport(token), resource))
