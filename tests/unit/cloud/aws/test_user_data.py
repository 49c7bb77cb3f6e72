"""User data of each AMI family, merged with the user's own."""

import base64
import json
import sys
from email import message_from_string

import pytest
from msgspec.structs import replace

from journeyman.cloud.aws.ami_families import CUSTOM, FAMILIES
from journeyman.cloud.aws.launch_templates import (
    LaunchTemplateVariant,
    TemplateContent,
    block_device_mappings,
    metadata_options,
    network_interfaces,
)
from journeyman.cloud.aws.user_data import Bootstrap, node_labels, user_data
from journeyman.core.api.objects import Taint
from journeyman.errors import CreateError
from tests.unit.cloud.aws.conftest import claim, node_class

UNREGISTERED = Taint(key="karpenter.sh/unregistered", effect="NoExecute")
VARIANT = LaunchTemplateVariant(
    image_id="ami-1", image_name="bottlerocket-aws-k8s-1.34-x86_64-v1.44.0", max_pods=29, efa_interfaces=0
)


def bootstrap(family, **changes) -> Bootstrap:
    """Return the settings of a node of NodePool web with one taint."""
    given = {
        "cluster_name": "demo",
        "cluster_endpoint": "https://demo",
        "cluster_ca": "Y2E=",
        "service_cidr": "10.100.0.0/16",
        "kubelet": {"maxPods": 29, "clusterDNS": ["10.100.0.10"], "kubeReserved": {"memory": "1Gi", "cpu": "70m"}},
        "labels": {"karpenter.sh/nodepool": "web", "team": "a"},
        "taints": (Taint(key="dedicated", value="web", effect="NoSchedule"), UNREGISTERED),
    }
    return Bootstrap(family=FAMILIES[family], **{**given, **changes})


def parts(text):
    head, *rest = text.split("--//")
    assert 'multipart/mixed; boundary="//"' in head
    assert rest[-1].strip() == "--"
    split = [part.strip("\n").partition("\n\n") for part in rest[:-1]]
    return [(kind.removeprefix("Content-Type: "), body) for kind, _, body in split]


def test_al2023_gets_a_node_config():
    [(kind, body)] = parts(user_data(bootstrap("AL2023", raid0=True)))
    config = json.loads(body)

    assert kind == "application/node.eks.aws"
    assert config["apiVersion"] == "node.eks.aws/v1alpha1"
    assert config["spec"]["cluster"] == {
        "name": "demo",
        "apiServerEndpoint": "https://demo",
        "certificateAuthority": "Y2E=",
        "cidr": "10.100.0.0/16",
    }
    assert config["spec"]["instance"] == {"localStorage": {"strategy": "RAID0"}}
    assert config["spec"]["kubelet"]["flags"] == ['--node-labels="karpenter.sh/nodepool=web,team=a"']
    assert config["spec"]["kubelet"]["config"] == {
        "maxPods": 29,
        "clusterDNS": ["10.100.0.10"],
        "kubeReserved": {"memory": "1Gi", "cpu": "70m"},
        "registerWithTaints": [
            {"key": "dedicated", "value": "web", "effect": "NoSchedule"},
            {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
        ],
    }


MIME = 'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="B"\n\n--B\nContent-Type: text/x-shellscript; charset="us-ascii"\n\necho hi\n--B\nContent-Type: application/node.eks.aws\n\nspec: {}\n--B--\n'


HEREDOC = """#!/bin/bash
cat > /var/tmp/nodeconfig.yaml <<X
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
X
"""


@pytest.mark.parametrize(
    ("custom", "expected"),
    [
        ("", []),
        ("#!/bin/bash\necho hi", ["text/x-shellscript"]),
        ("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {}", ["application/node.eks.aws"]),
        (MIME, ["text/x-shellscript", "application/node.eks.aws"]),
        (HEREDOC, ["text/x-shellscript"]),
        (HEREDOC.replace("#!/bin/bash\n", ""), ["text/x-shellscript"]),
        ('{"apiVersion":"node.eks.aws/v1alpha1","kind":"NodeConfig","spec":{}}', ["application/node.eks.aws"]),
        ("{kind: NodeConfig, apiVersion: node.eks.aws/v1alpha1}", ["application/node.eks.aws"]),
        ("# mine\n---\nkind: NodeConfig\n'apiVersion': \"node.eks.aws/v1alpha1\"", ["application/node.eks.aws"]),
        ("apiVersion: v1\nkind: ConfigMap\nwhat: node.eks.aws/", ["text/x-shellscript"]),
        ("- apiVersion: node.eks.aws/v1alpha1", ["text/x-shellscript"]),
        ("apiVersion: node.eks.aws/v1alpha1\n\tkind: {", ["text/x-shellscript"]),
        ("[" * 9000 + "node.eks.aws/", ["text/x-shellscript"]),
    ],
)
def test_users_part_comes_first_with_its_content_type(custom, expected):
    """It may be a script, a NodeConfig or an archive; Journeyman's part is last and overrides it when nodeadm merges."""
    found = parts(user_data(bootstrap("AL2023", custom=custom)))
    assert [kind.partition(";")[0] for kind, _ in found] == [*expected, "application/node.eks.aws"]
    assert all(body.strip() in custom for _, body in found[:-1])


@pytest.mark.parametrize("family", ["AL2", "AL2023"])
def test_parts_keep_their_transfer_encoding(family):
    """What Terraform's cloudinit_config writes with base64_encode; a nested archive's parts are parts, too."""
    script = base64.b64encode(b"#!/bin/bash\necho hi").decode()
    inner = (
        '--B\nContent-Type: multipart/mixed; boundary="C"\n\n--C\nContent-Type: text/x-shellscript\n\necho in\n--C--\n'
    )
    encoded = (
        f"--B\nContent-Transfer-Encoding: base64\nContent-Type: text/x-shellscript\nMime-Version: 1.0\n\n{script}\n"
    )
    custom = f'Content-Type: multipart/mixed; boundary="B"\nMIME-Version: 1.0\n\n{encoded}{inner}--B--\n'
    message = message_from_string(user_data(bootstrap(family, custom=custom)))

    first, second, _ = message.get_payload()
    assert first.get_payload(decode=True) == b"#!/bin/bash\necho hi"
    assert second.get_payload().strip() == "echo in"


RAID_TWICE = """
[settings.bootstrap-commands.mine]
commands = [["apiclient", "ephemeral-storage", "init"]]
mode = "always"
"""


@pytest.mark.parametrize(
    ("alias", "spec", "words"),
    [
        ("bottlerocket", {"userData": RAID_TWICE, "instanceStorePolicy": "RAID0"}, "mine"),
        ("bottlerocket", {"userData": RAID_TWICE}, ""),
        (
            "bottlerocket",
            {"userData": RAID_TWICE.replace("ephemeral-storage", "set"), "instanceStorePolicy": "RAID0"},
            "",
        ),
        ("bottlerocket", {"userData": "[settings", "instanceStorePolicy": "RAID0"}, "not valid"),
        ("bottlerocket", {"userData": "[settings"}, "not valid"),
        ("al2023", {"userData": RAID_TWICE, "instanceStorePolicy": "RAID0"}, ""),
        ("al2023", {"userData": "MIME-Version: 1.0\n\nnot multipart"}, "not valid"),
    ],
)
def test_user_data_that_cannot_work_is_a_condition(resolved, alias, spec, words):
    """Two commands that set up the same disks fail the boot; a text that does not parse fails each launch."""
    body = resolved(amiSelectorTerms=[{"alias": f"{alias}@latest"}], **spec)
    [found] = [c for c in body["status"]["conditions"] if c["type"] == "ValidationSucceeded"]
    assert (found["status"], found["reason"]) == (
        ("False", "UserDataInvalid") if words else ("True", "ValidationSucceeded")
    )
    assert words in found["message"]


def test_al2_calls_its_bootstrap_script():
    """Flags are in Karpenter's order and maps sorted by key, so equal settings give equal text.

    bootstrap.sh cannot derive the IP family.
    """
    [(_, script)] = parts(user_data(bootstrap("AL2", raid0=True)))
    [(_, ipv6)] = parts(user_data(bootstrap("AL2", kubelet={"maxPods": 29, "clusterDNS": ["fd00::a"]})))

    assert script.startswith("#!/bin/bash -xe\n")
    assert "/etc/eks/bootstrap.sh 'demo' --apiserver-endpoint 'https://demo' --b64-cluster-ca 'Y2E='" in script
    assert "--dns-cluster-ip '10.100.0.10' \\\n--use-max-pods false" in script
    assert (
        """--kubelet-extra-args '--node-labels="karpenter.sh/nodepool=web,team=a" """
        """--register-with-taints="dedicated=web:NoSchedule,karpenter.sh/unregistered:NoExecute" --max-pods=29 """
        """--kube-reserved="cpu=70m,memory=1Gi"' \\\n--local-disks raid0"""
    ) in script
    assert "--ip-family ipv6 \\\n--dns-cluster-ip 'fd00::a'" in ipv6


def test_windows_runs_the_users_script_first():
    """The user data is one PowerShell block; a custom image defines its own user data."""
    lines = user_data(bootstrap("Windows2022", custom="Write-Host hi")).splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("<powershell>", "Write-Host hi", "</powershell>")
    assert lines[3].startswith("& $EKSBootstrapScriptFile -EKSClusterName 'demo' -APIServerEndpoint 'https://demo'")
    assert lines[3].endswith("-DNSClusterIP '10.100.0.10'")
    assert user_data(bootstrap("Custom", custom="anything")) == "anything"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="reads TOML with the standard library")
class TestBottlerocket:
    """The user data is TOML: the user's settings, overridden by Journeyman's."""

    @staticmethod
    def settings(**changes):
        """Return the parsed TOML."""
        import tomllib

        return tomllib.loads(user_data(bootstrap("Bottlerocket", **changes)))["settings"]

    def test_our_settings_override_the_users_and_labels_merge(self):
        """A node without our taint would run pods too early. The order of the user's keys does not matter for the digest."""
        custom = """
            [settings.kubernetes]
            cluster-name = "theirs"
            registry-qps = 7
            [settings.kubernetes.node-labels]
            mine = "yes"
            [settings.kubernetes.node-taints]
            theirs = ["x:NoSchedule"]
            [settings.ntp]
            time-servers = ["169.254.169.123"]
        """
        settings = self.settings(custom=custom)
        kubernetes = settings["kubernetes"]

        assert settings["ntp"] == {"time-servers": ["169.254.169.123"]}
        assert (kubernetes["cluster-name"], kubernetes["registry-qps"], kubernetes["max-pods"]) == ("demo", 7, 29)
        assert kubernetes["node-labels"] == {"mine": "yes", "karpenter.sh/nodepool": "web", "team": "a"}
        assert kubernetes["node-taints"] == {
            "dedicated": ["web:NoSchedule"],
            "karpenter.sh/unregistered": [":NoExecute"],
        }
        assert kubernetes["kube-reserved"] == {"cpu": "70m", "memory": "1Gi"}
        one, other = "[settings.ntp]\na = 1\nb = 2", "[settings.ntp]\nb = 2\na = 1"
        assert user_data(bootstrap("Bottlerocket", custom=one)) == user_data(bootstrap("Bottlerocket", custom=other))

    @pytest.mark.parametrize(("ami", "explicit"), [("v1.44.0-abc", True), ("v1.46.0-abc", False), ("unknown", True)])
    def test_local_disks_are_mounted_at_every_boot(self, ami, explicit):
        """Before Bottlerocket 1.46 the settings must name the directories."""
        command = self.settings(raid0=True, ami_name=ami)["bootstrap-commands"]["000-mount-instance-storage"]
        assert (command["essential"], command["mode"]) == (True, "always")
        assert ("--dirs" in command["commands"][1]) is explicit


@pytest.mark.parametrize(
    ("image", "custom", "reason", "said"),
    [
        ("bottlerocket", "[settings", "LaunchFailed", "userData of EC2NodeClass default"),
        ("bottlerocket", "settings = 1", "LaunchFailed", "userData of EC2NodeClass default"),
        ("al2023", "#" * 17000, "UserDataSizeLimitExceeded", "17"),
    ],
    ids=["no TOML", "no settings", "over EC2's limit"],
)
def test_user_data_that_ec2_or_the_image_would_refuse_fails_the_claims_launch(settings, image, custom, reason, said):
    """The error names the NodeClass to correct."""
    class_ = node_class(amiSelectorTerms=[{"alias": f"{image}@latest"}], userData=custom)
    with pytest.raises(CreateError, match=said) as caught:
        content(settings, class_).data(VARIANT)
    assert caught.value.condition_reason == reason


def content(settings, class_=None, **changes) -> TemplateContent:
    given = {"claim": claim(), "capacity_type": "spot", "tenancy": "default"}
    return TemplateContent(settings=settings, node_class=class_ or node_class(), **{**given, **changes})


def test_user_data_has_no_kubernetes_domain_labels():
    """The API server refuses them from kubelets; registration adds them."""
    labels = node_labels(claim(), "spot", FAMILIES["AL2023"])

    assert labels == {
        "karpenter.sh/capacity-type": "spot",
        "karpenter.sh/do-not-sync-taints": "true",
        "karpenter.sh/nodepool": "default",
        "team": "web",
    }
    assert "karpenter.sh/do-not-sync-taints" not in node_labels(claim(), "spot", CUSTOM)


def test_launch_template_has_all_settings_of_a_node(settings):
    data = content(replace(settings, cluster_dns="10.100.0.10")).data(VARIANT)
    config = json.loads(parts(base64.b64decode(data["UserData"]).decode())[0][1])

    assert (data["ImageId"], data["IamInstanceProfile"]) == ("ami-1", {"Name": "profile"})
    assert data["NetworkInterfaces"] == [{"DeviceIndex": 0, "Groups": ["sg-1"]}]
    assert config["spec"]["kubelet"]["config"]["maxPods"] == 29
    assert config["spec"]["kubelet"]["config"]["clusterDNS"] == ["10.100.0.10"]
    assert [t["ResourceType"] for t in data["TagSpecifications"]] == ["network-interface", "spot-instances-request"]
    assert {"Key": "karpenter.sh/nodepool", "Value": "default"} in data["TagSpecifications"][0]["Tags"]
    assert not any("nodeclaim" in tag["Key"] for tag in data["TagSpecifications"][0]["Tags"])


def test_volumes_are_the_users_or_the_familys_defaults():
    """Sizes are rounded up to whole GiB; Custom has no default."""
    mine = {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "10G", "volumeType": "gp3", "kmsKeyID": "k", "iops": 3000}}

    assert block_device_mappings(node_class(blockDeviceMappings=[mine])) == [
        {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 10, "VolumeType": "gp3", "KmsKeyId": "k", "Iops": 3000}}
    ]
    bottlerocket = block_device_mappings(node_class(amiSelectorTerms=[{"alias": "bottlerocket@latest"}]))
    assert [(m["DeviceName"], m["Ebs"]["VolumeSize"]) for m in bottlerocket] == [("/dev/xvda", 4), ("/dev/xvdb", 20)]
    assert block_device_mappings(node_class(amiSelectorTerms=[{"id": "ami-1"}], amiFamily="Custom")) == []


def test_metadata_has_the_crds_defaults():
    """Even if no API server has set them; regions without the IPv6 setting do not get it."""
    assert metadata_options(node_class(metadataOptions={"httpPutResponseHopLimit": 2}), region="us-east-1") == {
        "HttpEndpoint": "enabled",
        "HttpProtocolIpv6": "disabled",
        "HttpPutResponseHopLimit": 2,
        "HttpTokens": "required",
        "InstanceMetadataTags": "disabled",
    }
    assert "HttpProtocolIpv6" not in metadata_options(node_class(), region="us-iso-east-1")


def test_interfaces_follow_efa_and_the_users_layout():
    """EFA uses one interface per card; an EFA-only interface has no addresses."""
    layout = [
        {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
        {"networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only"},
    ]
    class_ = node_class(associatePublicIPAddress=False, ipPrefixCount=2, connectionTracking={"udpTimeout": 30})
    own = network_interfaces(node_class(networkInterfaces=layout, associatePublicIPAddress=True), 0, ipv6=False)

    assert [(i["NetworkCardIndex"], i["DeviceIndex"]) for i in network_interfaces(class_, 3, ipv6=False)] == [
        (0, 0),
        (1, 1),
        (2, 1),
    ]
    assert network_interfaces(class_, 0, ipv6=True) == [
        {
            "DeviceIndex": 0,
            "Groups": ["sg-1"],
            "PrimaryIpv6": True,
            "Ipv6AddressCount": 1,
            "AssociatePublicIpAddress": False,
            "Ipv6PrefixCount": 2,
            "ConnectionTrackingSpecification": {"UdpTimeout": 30},
        }
    ]
    assert ["AssociatePublicIpAddress" in interface for interface in own] == [True, False]
