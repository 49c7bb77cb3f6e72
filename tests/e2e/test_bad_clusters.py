"""Misconfigured clusters: errors name the cluster and the remedy, and the steps succeed once the cluster is repaired.

The deployed steps run in one process against a real API server, whose certificate expires and whose CRDs have another
version. `test_real_control_plane` tests outages, missing CRDs and missing permissions.
"""

import json
from datetime import timedelta

import pytest
import yaml

from journeyman.core.plan import Step
from journeyman.runtime.aws import AwsAdapters
from journeyman.runtime.composition import Runtime, installed
from journeyman.runtime.environment import read_environment
from journeyman.runtime.lambda_entry import run_batch
from journeyman.steps.provision import provision
from journeyman.steps.sweep import sweep
from journeyman_simulator.deployment_files import deployment_file
from tests.controlplane.manifests import install, install_crds, remove_crds
from tests.controlplane.registration import registration
from tests.helpers.fakes import FakeQueue

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("control-plane")]

OLD = "v1beta1"


class Context:
    aws_request_id = "req-1"

    def get_remaining_time_in_millis(self):
        return 30_000


class RecordingAdapters(AwsAdapters):
    """Lambda's adapters with recorded log lines and messages; a call of a cloud API fails the test."""

    def __init__(self, environment):
        super().__init__(environment, clients=lambda service, region: pytest.fail(f"{service} is called"))
        self.lines, self.fake_queue = [], FakeQueue()

    def queue(self):
        return self.fake_queue

    def log(self, level, message, **fields):
        self.lines.append({"level": level, "message": message, **fields})


class DeployedSteps:
    """The steps of one cluster in a process that keeps its caches."""

    def __init__(self, plane):
        self.plane = plane
        clusters = json.dumps([registration(plane, "demo", plane.kubeconfig)])
        queues = {
            f"JOURNEYMAN_{queue}_QUEUE_URL": "none" for queue in ("PROVISION", "TERMINATE", "CONSOLIDATE", "REQUEUE")
        }
        environment = read_environment({"JOURNEYMAN_CLUSTERS": clusters, "AWS_REGION": "us-east-1", **queues})
        self.adapters = RecordingAdapters(environment)
        self._runtime = Runtime(environment.settings, self.adapters)

    def run(self, step, function, number):
        """Run a step for one message; return whether the message is removed from the queue, and the log lines."""
        now = self._runtime.clock.now().isoformat()
        body = {
            "version": "1",
            "source": "requeue",
            "id": f"m{number}",
            "time": now,
            "cluster": "demo",
            "step": step.value,
        }
        record = {"messageId": f"m{number}", "body": json.dumps(body), "eventSource": "aws:sqs", "receiptHandle": "r"}
        with installed(self._runtime):
            answer = run_batch(step.value, function, {"Records": [record]}, Context())
        lines, self.adapters.lines = self.adapters.lines, []
        return not answer["batchItemFailures"], lines


@pytest.fixture(scope="module")
def deployed(make_control_plane):
    with make_control_plane() as plane:
        yield DeployedSteps(plane)


def test_expired_certificate_is_reported_until_it_is_renewed(deployed):
    """A retry cannot help, so the message is removed; the sweep checks each minute and succeeds after the renewal."""
    install_crds(deployed.plane.admin)
    deployed.plane.replace_certificate(timedelta(hours=-1))
    try:
        is_removed, (line,) = deployed.run(Step.PROVISION, provision, 1)
        is_sweep_removed, (sweep_line,) = deployed.run(Step.SWEEP, sweep, 2)
    finally:
        deployed.plane.replace_certificate(timedelta(hours=1))
    renewed = deployed.run(Step.SWEEP, sweep, 3)

    for each in (line, sweep_line):
        assert (each["error"], each["cluster"]) == ("ConfigurationError", "demo")
        assert "has expired" in each["message"]
        assert each["to_do"].startswith("renew the API server's certificate")
    assert (is_removed, is_sweep_removed) == (True, True)
    assert renewed == (True, [])


def test_crds_of_another_version_are_reported_until_replaced(deployed):
    """The step writes no object in the version of an old Karpenter's CRDs; its message is retried and blocks no other."""
    remove_crds(deployed.plane.admin)
    install(
        deployed.plane.admin,
        [of_version(path, OLD) for path in deployment_file("infra", "crds").glob("karpenter.sh_*.yaml")],
    )
    is_removed, (line,) = deployed.run(Step.PROVISION, provision, 1)
    written = [
        deployed.plane.admin.do("GET", f"/apis/karpenter.sh/{OLD}/{kind}")["items"]
        for kind in ("nodepools", "nodeclaims")
    ]
    remove_crds(deployed.plane.admin)
    install_crds(deployed.plane.admin)
    replaced = deployed.run(Step.PROVISION, provision, 2)

    assert line["cluster"] == "demo"
    assert line["message"].endswith("of karpenter.sh/v1, but v1beta1: the CRDs are of another version")
    assert "infra/crds" in line["to_do"]
    assert not is_removed
    assert written == [[], []]
    assert replaced == (True, [])


def of_version(path, version):
    """Return one of the repository's CRDs with another version."""
    crd = yaml.safe_load(path.read_text())
    (served,) = crd["spec"]["versions"]
    served["name"] = version
    return crd
