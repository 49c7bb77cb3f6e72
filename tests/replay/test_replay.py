"""`journeyman replay` on the recorded events and clusters that ship with the project.

Covers: forwarder event on an empty cluster, an SQS batch with one unreadable record, a Spot warning, a foreign instance,
schedules, the API, a folder as cluster, and an account behind an endpoint.
"""

import io
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from journeyman.errors import ConfigurationError
from journeyman_simulator.replay import EndpointAccount
from journeyman_simulator.simulator_cli.replay_command import run_replay
from tests.controlplane.processes import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moto")]

EVENTS = Path(__file__).parents[2] / "events"
CLUSTERS = EVENTS / "clusters"


def replay(*events, cluster, aws="moto"):
    output = io.StringIO()
    status = run_replay([EVENTS / e for e in events], cluster, aws, Console(file=output, width=200))
    return status, output.getvalue()


def test_pending_pods_event_launches_nodes_on_an_empty_cluster():
    """The step creates NodeClaims before it calls CreateFleet, and sends a requeue message for the registration."""
    status, text = replay("forwarder/pods-unschedulable.json", cluster=CLUSTERS / "zero-nodes.yaml")
    assert status == 0
    assert "to fit 10 pod(s)" in text
    assert "create NodeClaim default-" in text
    assert "ec2:CreateFleet" in text
    assert "requeue   provision in" in text


def test_valid_records_are_handled_beside_a_malformed_one():
    """The malformed record goes to the dead-letter queue, the error names it, and the handler handles the others."""
    status, text = replay("sqs/provision-batch-one-malformed.json", cluster=CLUSTERS / "zero-nodes.yaml")
    assert status == 1
    assert "ec2:CreateFleet" in text
    assert "cannot read the body of SQS message" in text
    assert "return to the queue" not in text


def test_spot_warning_taints_deletes_and_requeues_both_steps():
    """The output shows the recorded instance id instead of the simulated account's id."""
    status, text = replay("eventbridge/ec2-spot-interruption/terminate.json", cluster=CLUSTERS / "two-spot-nodes.yaml")
    assert status == 0
    assert "delete NodeClaim default-x7k2p" in text
    assert "karpenter.sh/disrupted" in text
    assert "SpotInterrupted on NodeClaim default-x7k2p" in text
    assert "requeue   provision now" in text
    assert "requeue   terminate now" in text


def test_later_events_see_the_writes_of_earlier_ones():
    """A second delivery of the same warning changes nothing, and the output reports that."""
    event = "eventbridge/ec2-spot-interruption/terminate.json"
    status, text = replay(event, event, cluster=CLUSTERS / "two-spot-nodes.yaml")
    assert status == 0
    assert text.count("delete NodeClaim default-x7k2p") == 1


@pytest.mark.parametrize(
    ("event", "function", "says"),
    [
        ("schedule/minute-sweep.json", "sweep", "terminate is due"),
        ("schedule/consolidation-window.json", "consolidate", ""),
        ("sqs/requeue-batch.json", "sweep", ""),
        ("eventbridge/health/instance-retirement.json", "interrupt", ""),
        ("api/get-plan.json", "api", ""),
    ],
)
def test_each_event_source_reaches_its_function(event, function, says):
    """The deployed handler of each source handles the event."""
    status, text = replay(event, cluster=CLUSTERS / "two-spot-nodes.yaml")
    assert f"→ {function}" in text
    assert says in text
    assert status == 0, text


def test_folder_of_files_is_read_as_one_cluster(tmp_path):
    """The output of `kubectl get … -o yaml` may be in one file or in several."""
    for number, document in enumerate(yaml.safe_load_all((CLUSTERS / "zero-nodes.yaml").read_text())):
        (tmp_path / f"{number}.yaml").write_text(
            yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": [document]})
        )
    status, text = replay("forwarder/pods-unschedulable.json", cluster=tmp_path)
    assert status == 0
    assert "to fit 10 pod(s)" in text


@pytest.mark.parametrize("content", ["[1, 2]", "{not json"])
def test_invalid_event_file_is_named(tmp_path, content):
    """The error is one sentence with the file's name, without a traceback."""
    broken = tmp_path / "broken.json"
    broken.write_text(content)
    with pytest.raises(ConfigurationError, match=r"broken\.json"):
        run_replay([broken], CLUSTERS / "zero-nodes.yaml", "moto")


def test_invalid_endpoint_is_refused():
    """The command loads and sends nothing."""
    with pytest.raises(ConfigurationError, match="is no endpoint"):
        replay("forwarder/pods-unschedulable.json", cluster=CLUSTERS / "zero-nodes.yaml", aws="localhost")


def test_unreachable_endpoint_is_named():
    """The error names the remedy, too."""
    with pytest.raises(ConfigurationError, match=r"no AWS answers at http://127\.0\.0\.1:9"):
        replay("forwarder/pods-unschedulable.json", cluster=CLUSTERS / "zero-nodes.yaml", aws="http://127.0.0.1:9")


@pytest.fixture
def localstack_port():
    """Start a LocalStack-compatible server in a separate process on a free port; yield the port."""
    command, port = shutil.which("moto_server", path=str(Path(sys.executable).parent)), free_port()
    server = subprocess.Popen([command, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            assert server.poll() is None, f"moto_server ended with status {server.returncode}"
            try:
                urllib.request.urlopen(f"http://localhost:{port}/moto-api/", timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield port
    finally:
        server.terminate()
        server.wait(10)


def test_replay_runs_against_a_localstack_compatible_endpoint(localstack_port, tmp_path):
    """localstack-client finds the instances at the endpoint."""
    url = f"http://localhost:{localstack_port}"
    ec2, iam = EndpointAccount(url).client("ec2"), EndpointAccount(url).client("iam")
    tag = [{"Key": "karpenter.sh/discovery", "Value": "demo"}]
    ec2.create_tags(Resources=[s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]], Tags=tag)
    ec2.create_tags(Resources=[ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]], Tags=tag)
    iam.create_role(RoleName="KarpenterNodeRole-demo", AssumeRolePolicyDocument="{}")
    is_al2023 = {"Name": "name", "Values": ["al2023-ami-2023.*-x86_64"]}
    image = ec2.describe_images(Owners=["amazon"], Filters=[is_al2023])["Images"][0]
    documents = list(yaml.safe_load_all((CLUSTERS / "zero-nodes.yaml").read_text()))
    node_class = next(d for d in documents if d["kind"] == "EC2NodeClass")
    node_class["spec"] |= {"amiSelectorTerms": [{"id": image["ImageId"]}], "amiFamily": "AL2023"}
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump_all(documents))

    status, text = replay("forwarder/pods-unschedulable.json", cluster=cluster, aws=url)

    assert status == 0, text
    assert "ec2:CreateFleet" in text
    launched = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
    assert launched
    assert all({"Key": "eks:eks-cluster-name", "Value": "demo"} in i["Tags"] for i in launched)
    assert json.dumps(text).count("launched nodeclaim") == len(launched)
