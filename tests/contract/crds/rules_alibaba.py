"""Rules of the ECSNodeClasses of both API groups."""

from __future__ import annotations

from collections.abc import Iterator

from tests.contract.crds.edge_values import BOOLEANS_BAD, QUANTITIES_BAD
from tests.contract.crds.rule import ACS, BASES, Rule, rule_of, with_few_values
from tests.contract.crds.rules_shared import selector_rules

ECS = "ECSNodeClass"
KINDS = (ECS, ACS)
CATEGORIES = ("cloud", "cloud_efficiency", "cloud_ssd", "cloud_essd", "cloud_auto", "cloud_essd_entry")
NO_CATEGORIES = ("CLOUD", "", "cloud_ssd_entry", 1)
INT32 = 2**31 - 1


def term_rules() -> Iterator[Rule]:
    """Selector terms."""
    vswitch, group = {"id": "vsw-0a1b2c"}, {"id": "sg-0a1b2c"}
    tags, name = {"tags": {"a": "b"}}, {"name": "web"}
    for kind in KINDS:
        yield from selector_rules(kind, "spec.vSwitchSelectorTerms", vswitch)
        yield from selector_rules(kind, "spec.securityGroupSelectorTerms", group, most=30 if kind == ECS else 5)
        for field in ("vSwitchSelectorTerms", "securityGroupSelectorTerms", "imageSelectorTerms"):
            yield rule_of(kind, f"spec.{field}")(bad=([], None))
        yield rule_of(kind, "spec.vSwitchSelectorTerms")(bad=([{"id": "vsw-A"}], [{"id": "vsw-"}], [{"id": "xvsw-1"}]))
        yield rule_of(kind, "spec.securityGroupSelectorTerms")(
            good=([name], [{"name": ""}], [name, group, tags]),
            bad=([{**name, **group}], [{**name, **group, **tags}], [{"name": 1}]),
        )
    # `karpenter.k8s.alibabacloud`: one term without a mixture suffices, and a name stands alone
    yield rule_of(ECS, "spec.vSwitchSelectorTerms")(good=([{**vswitch, **tags}, vswitch],))
    yield rule_of(ECS, "spec.securityGroupSelectorTerms")(
        good=([{**group, **tags}, group], [{**name, **tags}, tags]), bad=([{**name, **tags}],)
    )
    yield rule_of(ECS, "spec.vSwitchSelectionPolicy")(good=("balanced", "cheapest", None), bad=("", "random", 1))
    # `karpenter.alibabacloud.com`: every term counts, and names may have tags
    yield rule_of(ACS, "spec.vSwitchSelectorTerms")(
        good=([{"zoneID": "cn-hangzhou-i"}], [{"zoneID": "cn-hangzhou-i", **tags}]),
        bad=([{**vswitch, **tags}, vswitch], [{**vswitch, "zoneID": "cn-hangzhou-i"}], [{"zoneID": ""}]),
    )
    yield rule_of(ACS, "spec.securityGroupSelectorTerms")(good=([{**name, **tags}],), bad=([{**group, **tags}, group],))
    reservation = {"id": "crp-0a1b2c"}
    yield from selector_rules(ACS, "spec.capacityReservationSelectorTerms", reservation)
    yield rule_of(ACS, "spec.capacityReservationSelectorTerms")(
        good=([], None), bad=([{**reservation, **tags}, reservation], [{"id": "cr-1"}])
    )
    yield from _image_rules()


def _image_rules() -> Iterator[Rule]:
    at, image = "spec.imageSelectorTerms", {"id": "m-0a1b2c"}
    official = {"id": "aliyun_3_x64_20G_container_optimized_alibase_20250629.vhd"}
    alias = {"alias": "AlibabaCloudLinux3@latest"}
    for kind in KINDS:
        yield rule_of(kind, at)(
            good=([image], [official], [image] * 30, [image, official]),
            bad=([image] * 31, [{}], [None], {}, [{"id": None}], [{"id": 1}]),
        )
    versions = ("ContainerOS@latest", "AlibabaCloudLinux3@3.2104", "ContainerOS@a@b")
    yield rule_of(ECS, at)(
        good=([alias], *([{"alias": v}] for v in versions), [{"id": ""}], [{**alias, "id": None}]),
        bad=(
            *([{"alias": v}] for v in ("", "ContainerOS", "ContainerOS@", "@latest", "Ubuntu@latest", "containeros@1")),
            *([{"alias": v}] for v in ("Container-OS@latest", "ContainerOS@" + "v" * 19, "ContainerOS\n@1", 1)),
            [alias, image],
            [alias, alias],
            [{**alias, **image}],
            [{**alias, **image}, image],
            [{"name": "mine"}],
        ),
    )
    family = {"imageFamily": "acs:alibaba_cloud_linux_3_2104_lts_x64"}
    named = {"name": "mine-*", "imageOwnerAlias": "self", "imageOwnerID": "123", "tags": {"a": "*"}}
    yield rule_of(ACS, at)(
        good=(
            [family],
            [named],
            [{"name": ""}],
            *([{"imageOwnerAlias": v}] for v in ("system", "others", "marketplace")),
            [{**image, "imageOwnerID": "123"}],
        ),
        bad=(
            [{"imageOwnerID": "123"}],
            [{**image, **family}],
            [{**image, "name": "a"}, image],
            [{**image, "tags": {"a": "b"}}],
            [{"imageOwnerAlias": "amazon"}],
            *([{"id": v}] for v in ("", "m-", "m-A", "ami-1", ".vhd", "aliyun_3.vhd.zip", "aliyun 3.vhd")),
            [{"alias": "ContainerOS@latest"}],
        ),
    )


def disk_rules() -> Iterator[Rule]:
    """System and data disks."""
    for kind in KINDS:
        yield rule_of(kind, "spec.systemDisk")(good=({}, None), bad=([], "40Gi"))
        levels = ("PL0", "PL3", None)
        yield rule_of(kind, "spec.systemDisk.performanceLevel")(good=levels, bad=("PL4", "pl0", "", 0))
    sizes = ("1Gi", "59000Gi", "64000G", "1Ti", "18Ti", "58Ti", "64T")
    wrong = ("0Gi", "59001Gi", "1.5Gi", "20", 20, "20gi", "", "Ti", "T", "1024Mi", "٣Gi")
    for path in ("spec.systemDisk.volumeSize", "spec.dataDisks.0.volumeSize"):
        yield rule_of(ECS, path)(good=(*sizes, None), bad=wrong)
    yield rule_of(ECS, "spec.systemDisk.size")(good=(20, 2048, INT32, None), bad=(19, "20", 20.5, INT32 + 1))
    for path in ("spec.systemDisk.categories", "spec.dataDiskCategories"):
        good = ([], None, list(CATEGORIES), ["cloud_essd", "cloud_essd"])
        yield rule_of(ECS, path)(good=good, bad=({}, "cloud", [None], *([c] for c in NO_CATEGORIES)))
    yield rule_of(ECS, "spec.formatDataDisk")(good=(True, False, None), bad=BOOLEANS_BAD)
    disks = "spec.dataDisks"
    yield rule_of(ECS, disks)(good=([], None, [{}], [{}] * 16, [{"device": "/dev/xvdb"}]), bad=([{}] * 17, {}, [None]))
    disk = {"category": "cloud_essd", "size": 20}
    yield rule_of(ACS, disks)(
        good=([], None, [disk], [disk] * 16, [{**disk, "device": "/dev/xvdb", "snapshotID": "s-1"}]),
        bad=([disk] * 17, {}, [None], [{}], [{"category": "cloud_essd"}], [{"size": 20}]),
    )
    for path, most in (("spec.systemDisk", 500), (f"{disks}.0", 32768)):
        yield rule_of(ACS, f"{path}.size")(good=(20, most, 40.0), bad=(19, most + 1, "40", "40Gi", 40.5, True))
        yield rule_of(ACS, f"{path}.category")(good=CATEGORIES, bad=NO_CATEGORIES)
        yield rule_of(ACS, f"{path}.encrypted")(good=(True, False, None), bad=BOOLEANS_BAD)
    keys = ({"kmsKeyID": "k", "encrypted": True}, {"kmsKeyID": ""}, {"kmsKeyID": None})
    no_keys = ({"kmsKeyID": "k"}, {"kmsKeyID": "k", "encrypted": False}, {"kmsKeyID": 1, "encrypted": True})
    yield rule_of(ACS, "spec.systemDisk")(good=keys, bad=no_keys)
    yield rule_of(ACS, disks)(good=tuple([{**disk, **k}] for k in keys), bad=tuple([{**disk, **k}] for k in no_keys))
    yield rule_of(ACS, f"{disks}.0.performanceLevel")(good=("PL2", None), bad=("PL9", ""))
    yield rule_of(ACS, f"{disks}.0.deleteWithInstance")(good=(True, False, None), bad=BOOLEANS_BAD)


def kubelet_rules() -> Iterator[Rule]:
    """Kubelet settings."""
    yield from _kubelet_rules(ECS, "spec.kubeletConfiguration")
    yield from with_few_values(_kubelet_rules(ACS, "spec.kubelet"))


def _kubelet_rules(kind: str, at: str) -> Iterator[Rule]:
    yield rule_of(kind, at)(good=({}, None, {"clusterDNS": ["10.0.0.10"]}), bad=([], "on", {"clusterDNS": "a"}))
    for field in ("maxPods", "podsPerCore"):
        yield rule_of(kind, f"{at}.{field}")(good=(0, 110, INT32, None), bad=(-1, "110", 1.5, INT32 + 1))
    grace = f"{at}.evictionMaxPodGracePeriod"
    yield rule_of(kind, grace)(good=(0, -1, INT32, None), bad=("60", 0.5, INT32 + 1, -INT32 - 2))
    amounts = ("1", "100m", "1Gi", "+1", "1e3", "5.")
    for field in ("systemReserved", "kubeReserved"):
        good = ({}, None, *({"cpu": a} for a in amounts), dict.fromkeys(("memory", "ephemeral-storage", "pid"), "1"))
        bad = ([], {"gpu": "1"}, {"": "1"}, {"cpu": "-1"}, {"cpu": 1}, {"cpu": "10%"})
        wrong = tuple({"cpu": a} for a in QUANTITIES_BAD)
        yield rule_of(kind, f"{at}.{field}")(good=good, bad=(*bad, *wrong))
    thresholds = ("5%", "0.5%", "99.99%", "100%", "100.00%", "100Mi", "1", "-1Gi")
    wrong = ("", "%", "101%", "1.234%", "-5%", "5 %", "low", 5)
    hard = f"{at}.evictionHard"
    good = (
        {},
        None,
        *({"memory.available": t} for t in thresholds),
        {"imagefs.inodesFree": "5%", "pid.available": "1"},
    )
    bad = ([], {"memory": "5%"}, {"allocatableMemory.available": "5%"}, *({"memory.available": t} for t in wrong))
    yield rule_of(kind, hard)(good=good, bad=bad)
    memory, nodefs = "memory.available", "nodefs.available"

    def soft(thresholds: object, periods: object) -> dict[str, object]:
        return {"evictionSoft": thresholds, "evictionSoftGracePeriod": periods}

    periods = ("1m30s", "500ms", "1.5h", "0s")
    wrong_periods = ("", "1", "1d", "-1m", "m", 60)
    yield rule_of(kind, at)(
        good=(
            soft({}, {}),
            soft(None, {}),
            soft({}, None),
            *(soft({memory: t}, {memory: "1m"}) for t in thresholds),
            *(soft({memory: "5%"}, {memory: p}) for p in periods),
            soft({memory: "5%", nodefs: "1Gi"}, {nodefs: "1m", memory: "2m"}),
        ),
        bad=(
            soft({memory: "5%"}, None),
            soft({memory: "5%"}, {}),
            soft(None, {memory: "1m"}),
            soft({memory: "5%"}, {nodefs: "1m"}),
            soft({memory: "5%", nodefs: "5%"}, {memory: "1m"}),
            soft({memory: "5%"}, {memory: "1m", nodefs: "1m"}),
            *(soft({memory: t}, {memory: "1m"}) for t in wrong),
            *(soft({memory: "5%"}, {memory: p}) for p in wrong_periods),
            soft({"memory": "5%"}, {"memory": "1m"}),
        ),
    )
    high, low = "imageGCHighThresholdPercent", "imageGCLowThresholdPercent"
    yield rule_of(kind, at)(
        good=({high: 100}, {low: 0}, {high: 85, low: 84}, {high: 1, low: None}),
        bad=({high: 80, low: 80}, {high: 79, low: 80}, {high: 101}, {low: -1}, {high: "85"}, {low: 80.5}),
    )
    yield rule_of(kind, f"{at}.cpuCFSQuota")(good=(True, False, None), bad=BOOLEANS_BAD)


def instance_rules() -> Iterator[Rule]:
    """Other instance settings."""
    common = (
        "",
        "kubernetes.io/cluster",
        "kubernetes.io/cluster/c1",
        "karpenter.sh/nodepool",
        "karpenter.sh/nodeclaim",
    )
    own = {
        ECS: ("ecs:ecs-cluster-name", "karpenter.k8s.alibabacloud/ecsnodeclass"),
        ACS: (
            *("karpenter.sh/managed-by", "karpenter.sh/cluster-id", "karpenter.sh/kubelet-max-pods"),
            "karpenter.alibabacloud.com/ecsnodeclass",
        ),
    }
    for kind in KINDS:
        yield rule_of(kind, "spec.tags")(
            good=({}, None, {"a": ""}, {"karpenter.sh/mine": "x"}, {f"k{i}": "v" for i in range(20)}),
            bad=(*({k: "v"} for k in (*common, *own[kind])), {"a": 1}, [], {f"k{i}": "v" for i in range(21)}),
        )
        yield rule_of(kind, "spec.userData")(good=("", "x" * 20000, None), bad=(1, {}))
        yield rule_of(kind, "spec")(bad=({}, None, []))
    yield rule_of(ECS, "spec.resourceGroupId")(good=("rg-acfm1", None), bad=("", "rg-", "rg-A", "xrg-1", 1))
    password, wrong = "spec.password", ("", "short-1", "p" * 31, "pässword1", "pass word1", "password\n", 123456789)
    yield rule_of(ECS, password)(good=("Passw0rd", "a" * 30, "~!@#$%^&*()_+-=[]{}|\\:;\"'<>,", None), bad=wrong)
    yield rule_of(ECS, "spec.keyPairName")(good=("mine", "", None), bad=(1, []))
    yield rule_of(ECS, "spec.passwordInherit")(good=(True, False, None), bad=BOOLEANS_BAD)
    spec = BASES[ECS]["spec"]
    yield rule_of(ECS, "spec")(
        good=({**spec, "password": "Passw0rd", "passwordInherit": False},),
        bad=({**spec, "password": "Passw0rd", "passwordInherit": True},),
    )
    yield from _acs_instance_rules()


def _acs_instance_rules() -> Iterator[Rule]:
    kind, spec = ACS, BASES[ACS]["spec"]
    for field in ("clusterID", "clusterName", "clusterEndpoint"):
        yield rule_of(kind, f"spec.{field}")(good=("", "c1", None), bad=(1, {}))
    arn = "acs:ram::123:role/node"
    yield rule_of(kind, "spec.role")(good=("Node-role_1.a", "r" * 64, None), bad=("", " a", "r" * 65, arn, 1))
    yield rule_of(kind, "spec.instanceStorePolicy")(good=("RAID0", None), bad=("RAID1", ""))
    yield rule_of(kind, "spec.spotStrategy")(good=("SpotAsPriceGo", None), bad=("NoSpot", "", "SpotWithPriceLimit"))
    yield rule_of(kind, "spec.spotPriceLimit")(good=(0.5, 1, 1e-9, None), bad=(0, -1, 0.0, "0.5", True))
    yield rule_of(kind, "spec")(
        good=({**spec, "spotStrategy": "SpotWithPriceLimit", "spotPriceLimit": 0.01},),
        bad=({**spec, "spotStrategy": "SpotWithPriceLimit", "spotPriceLimit": None},),
    )
    preference = "spec.capacityReservationPreference"
    yield rule_of(kind, preference)(good=("open", "target", "none", None), bad=("Open", "", 1))
    options = "spec.metadataOptions"
    yield rule_of(kind, options)(good=({}, None), bad=([], "on"))
    yield rule_of(kind, f"{options}.httpTokens")(good=("required", "optional", None), bad=("enabled", "", 1))
    yield rule_of(kind, f"{options}.httpEndpoint")(good=("enabled", "disabled", None), bad=("on", "", True))
    yield rule_of(kind, f"{options}.httpPutResponseHopLimit")(good=(1, 64, None), bad=(0, 65, "1", 1.5, True))
    template = {"launchTemplateID": "lt-0a1b2c"}
    yield rule_of(kind, "spec")(
        good=(
            template,
            {**spec, **template},
            *({**template, "launchTemplateVersion": v} for v in (1, 2**63 - 1, None)),
        ),
        bad=(
            {"launchTemplateID": None},
            {"launchTemplateID": "lt-"},
            {"launchTemplateID": "xlt-1"},
            {**spec, "launchTemplateVersion": 1},
            *({**template, "launchTemplateVersion": v} for v in (0, -1, "1", 1.5, 2**63)),
            {**template, "vSwitchSelectorTerms": []},
        ),
    )


def status_rules() -> Iterator[Rule]:
    """Statuses."""
    for kind in KINDS:
        yield rule_of(kind, "status.securityGroups")(good=([{"id": "sg-1"}], [], None), bad=([{}], [{"name": "a"}]))
    vswitches, vswitch = "status.vSwitches", {"id": "vsw-1", "zoneID": "cn-hangzhou-i"}
    no_zone = ([{"id": "vsw-1"}], [{"zoneID": "cn-hangzhou-i"}], [None], {})
    yield rule_of(ECS, vswitches)(good=([], None, [vswitch]), bad=(*no_zone, [{**vswitch, "zoneID": 1}]))
    zoned = {"id": "vsw-1", "zone": "cn-hangzhou-i"}
    yield rule_of(ACS, vswitches)(
        good=([], None, [zoned], [{**zoned, **vswitch, "availableIPAddressCount": 7}]),
        bad=(*no_zone, [{**zoned, "availableIPAddressCount": "7"}], [{**zoned, "availableIPAddressCount": 0.5}]),
    )
    image = {"id": "m-1", "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}]}
    yield rule_of(ECS, "status.images")(
        good=([image], [{**image, "requirements": [], "name": "a"}]),
        bad=([{"id": "m-1"}], [{**image, "requirements": [{"key": "a"}]}], [{**image, "name": 1}]),
    )
    yield rule_of(ACS, "status.images")(
        good=([{"id": "m-1"}], [{"id": "m-1", "name": "a", "architecture": "x86_64"}]),
        bad=([{"name": "a"}], [{"id": "m-1", "architecture": 1}], [None]),
    )
    yield rule_of(ACS, "status.ready")(good=(True, False, None), bad=BOOLEANS_BAD)
    yield rule_of(ACS, "status.ramRole")(good=("", "r", None), bad=(1,))
