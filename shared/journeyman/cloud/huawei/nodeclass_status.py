"""Compute the `status` of a CCENodeClass: subnets and conditions.

Restates: huaweicloud-samples/karpenter-provider-huawei pkg/controllers/nodeclass.
Differs: ValidationSucceeded says why CCE would refuse a node, and is a part of Ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from journeyman.cloud.huawei.cluster_network import ClusterNetwork
from journeyman.cloud.nodeclass_conditions import StatusPart, conditions_of, found_or_refused, selected, unexamined
from journeyman.core.api.ccenodeclass import SUBNETS_READY, CCENodeClassView, cce_node_class, problems_of, status_of
from journeyman.core.api.conditions import CCENODECLASS_DEPENDENTS, VALIDATION_SUCCEEDED
from journeyman.errors import InvalidObjectError


class NodeClassReconciler:
    """Computes the status of the CCENodeClasses of one cluster."""

    def __init__(self, network: ClusterNetwork) -> None:
        self._network = network

    def resolve(self, raw: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        """Return the status at `now`; its conditions carry the current generation.

        Raises:
            CloudProviderError: Huawei Cloud did not respond; the status is unknown.
        """
        conditions = conditions_of(raw, CCENODECLASS_DEPENDENTS).initialised(now)
        try:
            node_class = cce_node_class(raw)
        except InvalidObjectError as error:
            conditions = unexamined(conditions, now, "the spec is invalid (see ValidationSucceeded)")
            conditions = conditions.set_false(VALIDATION_SUCCEEDED, now, "InvalidSpec", error.message)
            return {**(raw.get("status") or {}), "conditions": conditions.to_wire()}
        subnets = found_or_refused(SUBNETS_READY, lambda: self._find_subnets(node_class))
        if subnets.reason:
            conditions = conditions.set_false(SUBNETS_READY, now, subnets.reason, subnets.message)
        else:
            conditions = conditions.set_true(SUBNETS_READY, now)
        if problems := problems_of(node_class.node_class):
            conditions = conditions.set_false(VALIDATION_SUCCEEDED, now, "NodeRefused", "; ".join(problems))
        elif subnets.reason:
            text = f"Awaiting {SUBNETS_READY}"
            conditions = conditions.set_false(VALIDATION_SUCCEEDED, now, "DependenciesNotReady", text)
        else:
            conditions = conditions.set_true(VALIDATION_SUCCEEDED, now)
        return status_of(subnets.value or (), conditions.conditions)

    def _find_subnets(self, node_class: CCENodeClassView) -> StatusPart:
        """Return the ids of the selected subnets in the cluster's VPC."""
        found = self._network.select(node_class.spec.subnet_selector_terms)
        if not found:
            return selected(SUBNETS_READY, "", (), "SubnetsNotFound", "SubnetSelector did not match any Subnets")
        vpc = self._network.vpc()
        usable = tuple(subnet.id for subnet in found if vpc in ("", subnet.vpc_id))
        ids = ", ".join(subnet.id for subnet in found)
        text = f"the selected subnets are not in the cluster's VPC {vpc}: {ids}; select subnets of that VPC"
        return selected(SUBNETS_READY, "", usable, "SubnetsNotInVPC", text)
