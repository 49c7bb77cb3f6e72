"""All validation rules of the custom resources, with values at their bounds: valid and invalid ones.

The tests check that CRDs and models validate each value by the rule, that they agree on any combination of values, and that
every difference from Karpenter's CRDs is listed with its reason.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from tests.contract.crds import rules_alibaba, rules_aws, rules_core, rules_huawei, rules_own, rules_status

RULES: Final = tuple(
    chain(
        rules_core.node_pool_rules(),
        rules_core.node_claim_rules(),
        rules_core.node_overlay_rules(),
        rules_core.capacity_buffer_rules(),
        rules_aws.term_rules(),
        rules_aws.ami_rules(),
        rules_aws.volume_rules(),
        rules_aws.instance_rules(),
        rules_alibaba.term_rules(),
        rules_alibaba.disk_rules(),
        rules_alibaba.kubelet_rules(),
        rules_alibaba.instance_rules(),
        rules_huawei.selector_rules(),
        rules_huawei.disk_rules(),
        rules_huawei.instance_rules(),
        rules_huawei.added_rules(),
        rules_own.node_disruption_rules(),
        rules_own.fleet_plan_rules(),
        rules_own.offering_state_rules(),
    )
)
STATUS_RULES: Final = (
    *rules_status.status_rules(),
    *rules_alibaba.status_rules(),
    *rules_huawei.status_rules(),
    *rules_own.churn_ledger_rules(),
)
