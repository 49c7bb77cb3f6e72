"""The user data with which an instance joins its ACK cluster."""

import base64
import json
import re

import pytest

from journeyman.cloud.alibaba.bootstrap import MAX_BYTES, user_data
from journeyman.cloud.node_bootstrap import mime_parts
from journeyman.errors import CreateError
from tests.unit.cloud.alibaba.conftest import AckCluster
from tests.unit.cloud.conftest import a_claim

SCRIPT = "curl https://attach.example/attach_node.sh | bash -s -- --token x"


def written(claim=None, *, kubelet=None, custom=""):
    return user_data(
        claim or a_claim(),
        attach_script=SCRIPT,
        cluster_id="c1",
        capacity_type="spot",
        kubelet=kubelet or {},
        custom=custom,
    )


def flag(text, name):
    return re.search(rf"--{name} (\S+)", text)[1]


def test_attach_script_gets_labels_taints_and_all_kubelet_settings():
    """The API server would refuse labels of Kubernetes' own domains from a kubelet; registration adds them."""
    spec = {
        "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
        "startupTaints": [{"key": "cni", "effect": "NoExecute"}],
    }
    kubelet = {
        "maxPods": 30,
        "evictionHard": {"memory.available": "5%"},
        "clusterDNS": ["10.0.0.10"],
        "cpuCFSQuota": False,
    }
    text = written(a_claim(spec=spec), kubelet=kubelet)
    labels = dict(pair.split("=") for pair in flag(text, "labels").split(","))

    assert labels["k8s.aliyun.com"] == "true"
    assert labels["ack.aliyun.com"] == "c1"
    assert labels["karpenter.sh/capacity-type"] == "spot"
    assert labels["karpenter.sh/nodepool"] == "default"
    assert labels["team"] == "web"
    assert "node.kubernetes.io/role" not in labels
    assert flag(text, "taints").split(",") == [
        "gpu=yes:NoSchedule",
        "cni=:NoExecute",
        "karpenter.sh/unregistered=:NoExecute",
    ]
    assert json.loads(base64.b64decode(flag(text, "node-config"))) == {"kubelet_config": kubelet}


def test_early_parts_come_before_the_attach_script():
    custom = "\n".join(
        [
            'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="B"\n',
            "--B\nContent-Type: text/x-shellscript\n\necho late",
            "--B\nContent-Type: text/x-shellscript; stage=pre\n\necho early",
            "--B--",
        ]
    )
    texts = [part.text for part in mime_parts(written(custom=custom))]
    plain = [part.text for part in mime_parts(written(custom="#!/bin/sh\necho plain"))]

    assert ["early" in texts[0], "attach_node" in texts[1], "late" in texts[2]] == [True] * 3
    assert ["attach_node" in plain[0], "plain" in plain[1]] == [True] * 2


def test_encoded_part_keeps_its_encoding():
    """cloud-init decodes the part by its header."""
    script = base64.b64encode(b"#!/bin/sh\necho hi").decode()
    part = f"--B\nContent-Type: text/x-shellscript\nContent-Transfer-Encoding: base64\n\n{script}\n--B--"
    custom = f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="B"\n\n{part}'
    [_, encoded] = mime_parts(written(custom=custom))
    assert (encoded.encoding, encoded.text.strip()) == ("base64", script)


def test_user_data_that_ecs_would_refuse_is_a_condition():
    """It is too long, or no valid MIME."""
    left = MAX_BYTES - len(written(custom="#").encode())
    assert len(written(custom="#" * (left + 1)).encode()) == MAX_BYTES
    with pytest.raises(CreateError) as caught:
        written(custom="#" * (left + 2))
    assert caught.value.condition_reason == "UserDataSizeLimitExceeded"
    assert caught.value.context["user_data_bytes"] == MAX_BYTES + 1

    with pytest.raises(CreateError, match=r"spec\.userData") as caught:
        written(custom="MIME-Version: 1.0\n\nnot multipart")
    assert caught.value.condition_reason == "UserDataInvalid"


def test_attach_script_gets_the_runtime_of_the_node_pools():
    """The script may name a runtime that the cluster's version does not support any more; a token lives for a day.

    Scripts are cached by the format of the disk: the first NodeClass does not decide for the others.
    """
    ack = AckCluster()
    for name, formats in (("a", True), ("b", False), ("c", True)):
        ack.launch(ack.node_class(formatDataDisk=formats), a_claim(name))
    scripts = [body for action, body in ack.open_api.launches if action == "DescribeClusterAttachScripts"]
    text = base64.b64decode(ack.open_api.launch["LaunchConfiguration"]["UserData"]).decode()

    assert [script["format_disk"] for script in scripts] == [True, False]
    assert scripts[0]["expired"] == ack.clock.now().timestamp() + 86400
    assert text.count("--runtime containerd --runtime-version 1.6.38") == 1


def a_pool(version, *, name="np", default=False, healthy=None):
    """Return a node pool as Container Service describes it; it says nothing of its nodes while it has none."""
    status = {} if healthy is None else {"status": {"healthy_nodes": healthy}}
    runtime = {} if version is None else {"runtime": "containerd", "runtime_version": version}
    return {"nodepool_info": {"is_default": default, "nodepool_id": name}, "kubernetes_config": runtime, **status}


@pytest.mark.parametrize(
    ("pools", "version"),
    [
        ([a_pool("1.5", healthy=9), a_pool("2.0", default=True, healthy=1)], "2.0"),
        ([a_pool("1.5", healthy=9), a_pool(None, default=True, healthy=1)], "1.5"),
        ([a_pool("1.5", healthy=1), a_pool("2.0", healthy=3), a_pool("1.7")], "2.0"),
        ([a_pool("1.5", name="b"), a_pool("2.0", name="a", healthy=0)], "1.5"),
        ([{"kubernetes_config": {"runtime": "containerd", "runtime_version": "1.4"}}], "1.4"),
    ],
)
def test_runtime_is_that_of_the_default_pool_or_of_most_healthy_nodes(pools, version):
    """Of equal pools it is the one with the greatest id; a pool without a runtime does not count."""
    ack = AckCluster()
    ack.open_api.answers["DescribeClusterNodePools"] = {"nodepools": pools}
    ack.requested()
    text = base64.b64decode(ack.open_api.launch["LaunchConfiguration"]["UserData"]).decode()
    assert text.count(f"--runtime containerd --runtime-version {version}") == 1
