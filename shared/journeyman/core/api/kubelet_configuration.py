"""Kubelet settings of a NodeClass that names each of them (`kubelet.config.k8s.io/v1beta1`).

Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/apis/v1alpha1/ecsnodeclass.go `KubeletConfiguration`.
Differs: an eviction threshold may not be empty, and a grace period must be a duration; with others the kubelet does not start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from journeyman.core.api import quantity
from journeyman.core.api.model import MAX_INT32, Bool, Int, Model, crd, problem, rules

RESERVABLE: Final = ("cpu", "memory", "ephemeral-storage", "pid")
SIGNALS: Final = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
)
_THRESHOLD: Final = rf"^([0-9]{{1,2}}(\.[0-9]{{1,2}})?|100(\.0{{1,2}})?)%$|{quantity.PATTERN}"
_GRACE_PERIOD: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise problem(f"{text!r} is not {what}")
        return text

    return check


def with_keys(field: str, allowed: Sequence[str]) -> Callable[[dict[str, str]], dict[str, str]]:
    """Return a validator that admits these keys only."""

    def check(values: dict[str, str]) -> dict[str, str]:
        for key in values:
            if key not in allowed:
                raise problem(f"{key!r} is no key of {field}; valid keys are {', '.join(allowed)}")
        return values

    return check


def check_not_negative(values: dict[str, str]) -> dict[str, str]:
    """Return the values if none is negative. Raises a pydantic error otherwise."""
    for key, value in values.items():
        if value.startswith("-"):
            raise problem(f"{key} {value!r} is negative; give zero or more")
    return values


def _key_rule(field: str, allowed: Sequence[str]) -> tuple[str, str]:
    return f"valid keys for {field} are {list(allowed)}", f"self.all(x, x in {list(allowed)})"


def reserved_rules(field: str) -> dict[str, Any]:
    """Return the CEL rules of reserved resources: known keys, and no negative amount."""
    return rules(
        _key_rule(field, RESERVABLE),
        (f"{field} value cannot be a negative resource quantity", "self.all(x, !self[x].startsWith('-'))"),
    )


_Amount = Annotated[
    str,
    AfterValidator(_matching(quantity.PATTERN, "a quantity")),
    Field(json_schema_extra=crd(pattern=quantity.PATTERN)),
]
_Threshold = Annotated[
    str,
    AfterValidator(_matching(_THRESHOLD, "a threshold: write a quantity or a percentage")),
    Field(json_schema_extra=crd(pattern=_THRESHOLD)),
]
_GracePeriod = Annotated[
    str,
    AfterValidator(_matching(_GRACE_PERIOD, "a duration such as 1m30s")),
    Field(json_schema_extra=crd(pattern=_GRACE_PERIOD)),
]


class KubeletConfiguration(Model):
    """Settings of the kubelet."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent",
                (
                    "!has(self.imageGCHighThresholdPercent) || !has(self.imageGCLowThresholdPercent) || "
                    "self.imageGCHighThresholdPercent > self.imageGCLowThresholdPercent"
                ),
            ),
            (
                "evictionSoft key does not have a matching evictionSoftGracePeriod",
                (
                    "!has(self.evictionSoft) || self.evictionSoft.all(e, has(self.evictionSoftGracePeriod) && "
                    "e in self.evictionSoftGracePeriod)"
                ),
            ),
            (
                "evictionSoftGracePeriod key does not have a matching evictionSoft",
                (
                    "!has(self.evictionSoftGracePeriod) || self.evictionSoftGracePeriod.all(e, has(self.evictionSoft) && "
                    "e in self.evictionSoft)"
                ),
            ),
        )
    )

    cluster_dns: tuple[str, ...] = Field(
        default=(), alias="clusterDNS", description="IP addresses of the cluster's DNS servers."
    )
    max_pods: Int | None = Field(
        default=None, ge=0, le=MAX_INT32, description="Number of pods per node.", json_schema_extra=crd(format="int32")
    )
    pods_per_core: Int | None = Field(
        default=None,
        ge=0,
        le=MAX_INT32,
        description="Number of pods per CPU core; maxPods is the limit.",
        json_schema_extra=crd(format="int32"),
    )
    system_reserved: Annotated[
        dict[str, _Amount],
        AfterValidator(with_keys("systemReserved", RESERVABLE)),
        AfterValidator(check_not_negative),
    ] = Field(
        default={},
        description="Resources reserved for the operating system.",
        json_schema_extra=reserved_rules("systemReserved"),
    )
    kube_reserved: Annotated[
        dict[str, _Amount],
        AfterValidator(with_keys("kubeReserved", RESERVABLE)),
        AfterValidator(check_not_negative),
    ] = Field(
        default={},
        description="Resources reserved for Kubernetes' own components.",
        json_schema_extra=reserved_rules("kubeReserved"),
    )
    eviction_hard: Annotated[dict[str, _Threshold], AfterValidator(with_keys("evictionHard", SIGNALS))] = Field(
        default={},
        description="Thresholds by signal at which the kubelet evicts pods at once.",
        json_schema_extra=rules(_key_rule("evictionHard", SIGNALS)),
    )
    eviction_soft: Annotated[dict[str, _Threshold], AfterValidator(with_keys("evictionSoft", SIGNALS))] = Field(
        default={},
        description="Thresholds by signal at which the kubelet evicts pods after a grace period.",
        json_schema_extra=rules(_key_rule("evictionSoft", SIGNALS)),
    )
    eviction_soft_grace_period: Annotated[
        dict[str, _GracePeriod], AfterValidator(with_keys("evictionSoftGracePeriod", SIGNALS))
    ] = Field(
        default={},
        description="Grace periods by signal; each needs a threshold in evictionSoft.",
        json_schema_extra=rules(_key_rule("evictionSoftGracePeriod", SIGNALS)),
    )
    eviction_max_pod_grace_period: Int | None = Field(
        default=None,
        ge=-MAX_INT32 - 1,
        le=MAX_INT32,
        description="Grace period in seconds of pods that are evicted by a soft threshold.",
        json_schema_extra=crd(format="int32", minimum=None, maximum=None),
    )
    image_gc_high_threshold_percent: Int | None = Field(
        default=None,
        ge=0,
        le=100,
        alias="imageGCHighThresholdPercent",
        description="Disk usage in percent from which images are deleted.",
        json_schema_extra=crd(format="int32"),
    )
    image_gc_low_threshold_percent: Int | None = Field(
        default=None,
        ge=0,
        le=100,
        alias="imageGCLowThresholdPercent",
        description="Disk usage in percent down to which images are deleted.",
        json_schema_extra=crd(format="int32"),
    )
    cpu_cfs_quota: Bool | None = Field(
        default=None, alias="cpuCFSQuota", description="Whether CPU limits are enforced by CFS quotas."
    )

    @model_validator(mode="after")
    def _high_above_low(self) -> Self:
        high, low = self.image_gc_high_threshold_percent, self.image_gc_low_threshold_percent
        if high is not None and low is not None and high <= low:
            raise problem("imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent")
        return self

    @model_validator(mode="after")
    def _soft_thresholds_have_grace_periods(self) -> Self:
        soft, periods = self.eviction_soft.keys(), self.eviction_soft_grace_period.keys()
        if missing := sorted(soft - periods):
            raise problem(f"evictionSoft {missing[0]} does not have a matching evictionSoftGracePeriod")
        if missing := sorted(periods - soft):
            raise problem(f"evictionSoftGracePeriod {missing[0]} does not have a matching evictionSoft")
        return self
