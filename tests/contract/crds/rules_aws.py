"""Rules of EC2NodeClasses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.contract.crds.differences import Admitted, Reported
from tests.contract.crds.edge_values import BOOLEANS_BAD
from tests.contract.crds.rule import BASES, JSONDict, Rule, rule_of
from tests.contract.crds.rules_shared import selector_rules


def term_rules() -> Iterator[Rule]:
    """Selector terms of an EC2NodeClass."""
    kind = "EC2NodeClass"
    ids = {
        "subnetSelectorTerms": "subnet-",
        "securityGroupSelectorTerms": "sg-",
        "amiSelectorTerms": "ami-",
        "capacityReservationSelectorTerms": "cr-",
    }
    for field, prefix in ids.items():
        at, required = f"spec.{field}", field != "capacityReservationSelectorTerms"
        own = {"id": f"{prefix}0123456789abcdef0"}
        if required:
            yield rule_of(kind, at)(bad=([], None))
        else:
            yield rule_of(kind, at)(good=(None,), listed=([],), because=Admitted.EMPTY)
        yield from selector_rules(kind, at, own)
    yield rule_of(kind, "spec.subnetSelectorTerms")(
        good=([{"tags": {}}], [{"id": "subnet-1", "tags": {"a": "b"}}, {"id": "subnet-2"}])
    )
    name, tags = {"name": "web"}, {"tags": {"a": "b"}}
    yield rule_of(kind, "spec.securityGroupSelectorTerms")(
        good=([name], [{"name": ""}], [{**name, **tags}, tags]),
        bad=([{**name, **tags}], [{**name, "id": "sg-1"}], [{**name, "id": "sg-1", **tags}]),
    )
    mine = {"ownerID": "123456789012"}
    yield rule_of(kind, "spec.capacityReservationSelectorTerms")(
        good=([{**mine, **tags}], [{"instanceMatchCriteria": "open"}], [{**tags, "instanceMatchCriteria": "targeted"}]),
        bad=(
            [mine],
            [{**tags, "ownerID": "12345"}],
            [{"instanceMatchCriteria": "any"}],
            [{"id": "cr-1", **mine}],
            [{"id": "cr-1", "instanceMatchCriteria": "open"}],
            [{"id": "xcr-1"}],
        ),
    )
    yield rule_of(kind, "spec.placementGroupSelector")(
        good=(None, {"name": "a"}, {"id": "pg-0a"}),
        bad=({}, {"name": ""}, {"name": "a", "id": "pg-0a"}, {"id": "pg-"}, {"id": "xpg-1"}, []),
    )


def ami_rules() -> Iterator[Rule]:
    """AMI selector terms and AMI family of an EC2NodeClass."""
    kind, base = "EC2NodeClass", BASES["EC2NodeClass"]["spec"]
    at = "spec.amiSelectorTerms"
    versions = (
        "al2023@latest",
        "al2023@v20240807",
        "bottlerocket@v1.10.0",
        "al2@latest",
        "windows2022@latest",
        "al2023@a@b",
    )
    without = {name: value for name, value in base.items() if name != "amiFamily"}
    yield rule_of(kind, "spec")(good=tuple({**without, "amiSelectorTerms": [{"alias": v}]} for v in versions))
    wrong = (
        "",
        "al2023",
        "al2023@",
        "@latest",
        "ubuntu@latest",
        "AL2023@latest",
        "al-2023@latest",
        "windows2022@v1",
        "al2023@" + "v" * 24,
        "al2023\n@latest",
    )
    yield rule_of(kind, "spec")(bad=tuple({**without, "amiSelectorTerms": [{"alias": v}]} for v in wrong))
    alias = {"alias": "al2023@latest"}
    yield rule_of(kind, at)(
        good=(
            [alias],
            [{"name": "mine", "owner": "self"}],
            [{"ssmParameter": "/a"}],
            [{"name": ""}],
            [{"id": "ami-1", "ssmParameter": "/a"}],
        ),
        bad=(
            [{"owner": "self"}],
            [alias, {"id": "ami-1"}],
            [alias, alias],
            [{**alias, "id": "ami-1"}],
            [{**alias, "name": "a"}],
            [{"id": "ami-1", "name": "a"}],
            [{"id": "ami-1", "owner": "self"}, {"name": "a"}],
        ),
    )
    yield rule_of(kind, "spec.amiFamily")(good=("AL2", "Custom", "Windows2025"), bad=("al2", "", "Ubuntu", None))
    families = (("al2@latest", "AL2"), ("bottlerocket@latest", "Bottlerocket"), ("windows2019@latest", "Custom"))
    yield rule_of(kind, "spec")(
        good=tuple({**base, "amiSelectorTerms": [{"alias": v}], "amiFamily": f} for v, f in families)
    )
    families = (("al2@latest", "AL2023"), ("bottlerocket@latest", "AL2"), ("windows2019@latest", "Windows2022"))
    yield rule_of(kind, "spec")(
        bad=tuple({**base, "amiSelectorTerms": [{"alias": v}], "amiFamily": f} for v, f in families)
    )


def volume_rules() -> Iterator[Rule]:
    """Block device mappings of an EC2NodeClass."""
    kind, at = "EC2NodeClass", "spec.blockDeviceMappings"
    root, plain = {"rootVolume": True}, {"deviceName": "/dev/xvdb"}
    yield rule_of(kind, at)(
        good=([], None, [plain] * 50, [root, plain, {"rootVolume": False}]),
        bad=([plain] * 51, [root, root], {}, [None]),
    )
    ebs = f"{at}.0.ebs"
    sizes = ("1Gi", "59000Gi", "64000G", "1Ti", "58Ti", "64T", "17Ti", "1T")
    yield rule_of(kind, f"{ebs}.volumeSize")(
        good=(*sizes, "20Ti"),
        bad=("0Gi", "59001Gi", "64001G", "59Ti", "65T", "1.5Gi", "20", "20gi", "", 20, "1024Mi", "٣Gi"),
    )
    yield rule_of(kind, f"{ebs}.volumeSize")(listed=("Ti", "T"), because=Reported.NO_SIZE)
    yield rule_of(kind, f"{ebs}.volumeSize")(listed=("18Ti", "28Ti", "48Ti", "49Ti"), because=Admitted.EVERY_SIZE)
    yield rule_of(kind, ebs)(
        good=(
            {"snapshotID": "snap-1"},
            {"snapshotID": "snap-1", "volumeInitializationRate": 100},
            {"volumeSize": "1Gi", "snapshotID": ""},
            None,
        ),
        bad=(
            {},
            {"encrypted": True},
            {"volumeSize": "1Gi", "volumeInitializationRate": 100},
            {"snapshotID": "", "volumeSize": "1Gi", "volumeInitializationRate": 100},
            [],
        ),
    )
    rate = {"snapshotID": "snap-1", "volumeSize": "1Gi"}
    yield rule_of(kind, ebs)(
        good=({**rate, "volumeInitializationRate": 300},),
        bad=tuple({**rate, "volumeInitializationRate": n} for n in (99, 301, "200", 150.5)),
    )
    yield rule_of(kind, f"{ebs}.volumeType")(good=("gp3", "standard", None), bad=("gp1", "", "GP3"))
    for field in ("iops", "throughput"):
        yield rule_of(kind, f"{ebs}.{field}")(good=(3000, -1, 2**62, None), bad=("3000", 2**63, 1.5))
    for field in ("encrypted", "deleteOnTermination"):
        yield rule_of(kind, f"{ebs}.{field}")(good=(True, False, None), bad=BOOLEANS_BAD)
    yield rule_of(kind, f"{at}.0.rootVolume")(good=(True, False, None), bad=BOOLEANS_BAD)


def instance_rules() -> Iterator[Rule]:
    """Other instance settings of an EC2NodeClass."""
    kind, base = "EC2NodeClass", BASES["EC2NodeClass"]["spec"]
    without = {name: value for name, value in base.items() if name != "role"}
    yield rule_of(kind, "spec")(
        good=({**without, "instanceProfile": "p"}, {**base, "instanceProfile": None}),
        bad=(
            without,
            {**base, "instanceProfile": "p"},
            {**without, "instanceProfile": ""},
            {**base, "role": ""},
            {**base, "role": None},
            {},
        ),
    )
    yield rule_of(kind, "spec")(listed=(None,), because=Reported.NO_SPEC)
    forbidden = (
        "",
        "eks:eks-cluster-name",
        "kubernetes.io/cluster/a",
        "kubernetes.io/cluster",
        "karpenter.sh/nodepool",
        "karpenter.sh/nodeclaim",
        "karpenter.k8s.aws/ec2nodeclass",
    )
    yield rule_of(kind, "spec.tags")(
        good=({}, None, {"a": ""}, {"karpenter.sh/mine": "x"}), bad=(*({k: "v"} for k in forbidden), {"a": 1}, [])
    )
    yield rule_of(kind, "spec.tags")(
        good=({f"k{i}": "v" for i in range(50)},),
        listed=({f"k{i}": "v" for i in range(51)},),
        because=Reported.TOO_MANY_TAGS,
    )
    for field in ("associatePublicIPAddress", "detailedMonitoring"):
        yield rule_of(kind, f"spec.{field}")(good=(True, False, None), bad=BOOLEANS_BAD)
    yield rule_of(kind, "spec.ipPrefixCount")(good=(0, 1, 2**31 - 1, None), bad=(-1, "1", 1.5, 2**31))
    yield rule_of(kind, "spec.userData")(good=("", "x" * 20000, None), bad=(1, {}))
    yield rule_of(kind, "spec.context")(good=("", "a", None), bad=(1,))
    yield rule_of(kind, "spec.instanceStorePolicy")(good=("RAID0", None), bad=("RAID1", "", "raid0"))
    metadata = "spec.metadataOptions"
    yield rule_of(kind, metadata)(good=({}, None), bad=([], "on"))
    for field in ("httpEndpoint", "httpProtocolIPv6"):
        yield rule_of(kind, f"{metadata}.{field}")(good=("enabled", "disabled", None), bad=("on", "", True))
    yield rule_of(kind, f"{metadata}.httpTokens")(good=("required", "optional", None), bad=("enabled", "", 1))
    yield rule_of(kind, f"{metadata}.httpPutResponseHopLimit")(good=(1, 64, None), bad=(0, 65, "1", 1.5, True))
    tracking = "spec.connectionTracking"
    yield rule_of(kind, tracking)(good=(None, {"udpTimeout": 30}), bad=({}, [], {"udpTimeout": None}))
    for field, low, high in (
        ("tcpEstablishedTimeout", 60, 432000),
        ("udpStreamTimeout", 60, 180),
        ("udpTimeout", 30, 60),
    ):
        yield rule_of(kind, f"{tracking}.{field}")(good=(low, high), bad=(low - 1, high + 1, str(low), low + 0.5))
    yield rule_of(kind, "spec.cpuOptions")(
        good=(None, {}, {"nestedVirtualization": "enabled"}), bad=({"nestedVirtualization": "on"}, [])
    )
    yield from _interface_rules()


def _interface_rules() -> Iterator[Rule]:
    kind, at = "EC2NodeClass", "spec.networkInterfaces"

    def card(card: Any, device: Any, type_: Any = "interface") -> JSONDict:
        return {"networkCardIndex": card, "deviceIndex": device, "interfaceType": type_}

    first = card(0, 0)
    yield rule_of(kind, at)(
        good=([], None, [first], [first, card(0, 1, "efa-only")], [first, card(1, 1, "efa-only"), card(1, 0)], [first, *(card(n, 1) for n in range(149))]),
        bad=(
            [card(0, 1)], [card(0, 0, "efa-only")], [first, first], [first, card(0, 0, "efa-only")], [first, card(1, 1, "efa-only"), card(1, 2, "efa-only")],
            [first, card(-1, 0)], [first, card(1, -1)], [first, card(1, 0, "efa")], [first, {}], [first, *(card(n, 1) for n in range(150))], [first, card("1", 0)], [first, card(2**31, 0)],
        ),
    )  # fmt: skip
    yield rule_of(kind, "spec.kubelet")(
        good=(None, {}, {"maxPods": 110, "kubeReserved": {"cpu": "100m"}}), bad=([], "on")
    )
    yield rule_of(kind, "spec.kubelet")(
        listed=({"maxPods": -1}, {"kubeReserved": {"gpu": "1"}}, {"evictionSoft": {"memory.available": "5%"}}),
        because=Admitted.LATER_KUBELET,
    )
