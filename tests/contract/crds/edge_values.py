"""Valid and invalid values of rules that several fields share."""

from __future__ import annotations

from typing import Final

N63: Final = "n" * 63
PREFIX: Final = ".".join(["a" * 50] * 5)  # 254 letters; a DNS name has at most 253

KEYS_GOOD: Final = (
    "team",
    "example.com/team",
    "a.b-c.d/E_f.g",
    f"{PREFIX[:253]}/{'n' * 62}",
    "node.kubernetes.io/instance-type",
)
KEYS_BAD: Final = (
    "",
    "-team",
    "team-",
    "UPPER/team",
    "a//b",
    "a/b/c",
    "/team",
    "team/",
    "tëam",
    "te am",
    "team\n",
    "a..b/c",
)
KEYS_TOO_LONG: Final = (f"{N63}n", f"example.com/{N63}n", f"{PREFIX}/n")
OURS_BY_NAME: Final = (
    "karpenter.k8s.aws/instance-family",
    "karpenter.k8s.aws/ec2nodeclass",
    "karpenter.k8s.alibabacloud/instance-cpu-model",
    "karpenter.k8s.alibabacloud/ecsnodeclass",
    "karpenter.alibabacloud.com/ecsnodeclass",
    "topology.k8s.alibabacloud/zone-id",
    "karpenter.k8s.huawei/instance-memory",
    "karpenter.k8s.huawei/ccenodeclass",
    "karpenter.sh/capacity-type",
)
RESERVED: Final = (
    "kubernetes.io/hostname",
    "karpenter.sh/registered",
    "karpenter.sh/do-not-sync-taints",
    "sub.karpenter.sh/x",
    "karpenter.k8s.aws/unheard-of",
    "sub.karpenter.k8s.aws/x",
)
RESERVED_BY_OTHER_CLOUDS: Final = (
    "karpenter.k8s.alibabacloud/unheard-of",
    "sub.karpenter.k8s.alibabacloud/x",
    "mykarpenter.alibabacloud.com/x",
    "karpenter.alibabacloud.com/instance-cpu",
    "karpenter.k8s.huawei/instance-cpu-model",
    "sub.karpenter.k8s.huawei/x",
)
VALUES_GOOD: Final = ("", "a", N63, "A_b.c-1")
VALUES_BAD: Final = (f"{N63}n", "-a", "a-", "a b", "ä", "a\n")
DURATIONS_GOOD: Final = ("0s", "1h30m", "90s", "1s1s", "2562047h")
DURATIONS_BAD: Final = ("", "1d", "1.5h", "-1h", "h", "1h ", "1 h", "٣h", 30, True)
QUANTITIES_GOOD: Final = ("1", 1, 0, "1.5", ".5", "5.", "+1", "1Ki", "100m", "1e3", "1E-3", "2Ei", 2.0)
QUANTITIES_BAD: Final = ("", "one", "1 Gi", "1gi", "1KB", "0x1", "٣", "1e", [], True, 1.5)
TIMES_GOOD: Final = (
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:00:00.123456Z",
    "2026-01-01T00:00:00+01:00",
    "2026-01-01t00:00:00z",
)
TIMES_BAD: Final = (
    "", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01 00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z",
    "2026-01-01T23:59:60Z", "2026-01-01T00:00Z", "2026-01-01T00:00:00+0100", "1767225600", 1767225600, "now",
)  # fmt: skip
BOOLEANS_BAD: Final = ("true", 1, 0, "")
TAGS_GOOD: Final = ({"a": "b"}, {"a": "*"}, {f"k{i}": "v" for i in range(20)})
TAGS_BAD: Final = ({"": "v"}, {"k": ""}, {f"k{i}": "v" for i in range(21)}, ["a"], {"k": 1})
