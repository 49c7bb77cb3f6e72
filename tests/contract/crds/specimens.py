"""Every rule of the custom resources, with values that just keep it and values that just break it.

One table for four questions: do the CRDs and the models judge each value as the rule says; do they agree on any mixture of
such values; what do Karpenter's own CRDs make of them; is what Karpenter takes and we do not listed, with its reason.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

from tests.contract.crds import rules_aws, rules_core, rules_own, rules_status

RULES: Final = tuple(
    chain(
        rules_core.node_pool_rules(),
        rules_core.node_claim_rules(),
        rules_core.node_overlay_rules(),
        rules_aws.term_rules(),
        rules_aws.ami_rules(),
        rules_aws.volume_rules(),
        rules_aws.instance_rules(),
        rules_own.node_disruption_rules(),
        rules_own.offering_state_rules(),
    )
)
STATUS_RULES: Final = tuple(rules_status.status_rules())
