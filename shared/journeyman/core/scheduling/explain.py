"""Why a pod has no place, per NodePool and in words that say what to change.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaim.go `InstanceTypeFilterError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from journeyman.core.api import labels
from journeyman.core.scheduling.limits import Headroom
from journeyman.core.scheduling.market import Stall, Wish
from journeyman.core.scheduling.offers import Ints
from journeyman.core.scheduling.results import PodError
from journeyman.core.scheduling.taints import untolerated

# Most helpful first: the nearer a pool came to taking the pod, the more its reason says.
_RANKS = ("limits", "offerings", "resources", "requirements", "taints")


def explain(
    wish: Wish,
    *,
    request: Ints,
    axes: Sequence[str],
    stalls: Sequence[Stall],
    headroom: Sequence[Headroom],
    set_aside: Mapping[str, str],
) -> PodError:
    """The error of a pod that no existing node and no NodePool took.

    Args:
        wish: What it wants of its node.
        request: What it takes, along `axes`.
        axes: Resource names.
        stalls: All NodePools in use, in order.
        headroom: Their limits as they stand now.
        set_aside: NodePools not in use, with why.
    """
    if not stalls:
        why = "; ".join(f"{name}: {reason}" for name, reason in set_aside.items())
        return PodError(
            kind="no-nodepool",
            message=f"no NodePool can be used{f' ({why})' if why else ''}",
            by_node_pool=dict(set_aside),
        )
    found = [
        (*_reason(wish, request, axes, stall, room), stall.template.name)
        for stall, room in zip(stalls, headroom, strict=True)
    ]
    found.sort(key=lambda entry: (_RANKS.index(entry[0]), entry[2]))
    by_pool = {name: reason for _, reason, name in found} | dict(set_aside)
    message = "; ".join(f"NodePool {name}: {reason}" for name, reason in by_pool.items())
    return PodError(
        kind="limits" if found[0][0] == "limits" else "unschedulable", message=message, by_node_pool=by_pool
    )


def _reason(wish: Wish, request: Ints, axes: Sequence[str], stall: Stall, headroom: Headroom) -> tuple[str, str]:
    """One pool's reason as (kind, words)."""
    template, table = stall.template, stall.template.table
    taint = untolerated(template.pool.spec.template.spec.taints, wish.shape.tolerations)
    if taint is not None:
        return "taints", f"did not tolerate taint {taint.key}={taint.value}:{taint.effect}"
    refusals = [
        template.requirements.compatible(wish.with_zones(t), allow_undefined=labels.WELL_KNOWN)
        for t in wish.shape.terms
    ]
    open_terms = [t for t, refusal in zip(wish.shape.terms, refusals, strict=True) if refusal is None]
    if not open_terms:
        return "requirements", next(r for r in refusals if r is not None)
    meets = np.zeros(len(table.row_type), dtype=bool)
    for term in open_terms:
        meets |= table.rows_meeting(template.requirements & wish.with_zones(term))
    meeting = np.unique(table.row_type[meets])
    if not len(meeting):
        unmet = next((u for t in open_terms if (u := table.unmet(template.requirements & wish.with_zones(t)))), "")
        what = unmet or "all that the pod requires of its node"
        return "requirements", f"none of its {len(table.types)} instance types has {what}"
    holding = meeting[(stall.sizes[meeting] >= request).all(axis=1) & stall.usable[meeting]]
    if not len(holding):
        return "resources", _too_small(stall.sizes[meeting], request, axes)
    if not (meets & table.available & np.isin(table.row_type, holding)).any():
        return "offerings", f"all offerings of the {len(holding)} instance types that would do are unavailable now"
    if not headroom.allows()[holding].any():
        left = ", ".join(f"{name} {max(int(n), 0)}" for name, n in zip(headroom.resources, headroom.left, strict=True))
        return (
            "limits",
            f"its limits leave no room for any of the {len(holding)} instance types that would do (left: {left})",
        )
    return "offerings", "the zones that its spread constraints leave have no offering for it"


def _too_small(sizes: Ints, request: Ints, axes: Sequence[str]) -> str:
    """Which resource is short on how many types."""
    short = [(int((sizes[:, a] < request[a]).sum()), axes[a]) for a in range(len(axes))]
    named = ", ".join(f"{name} on {count}" for count, name in sorted(short, key=lambda s: (-s[0], s[1])) if count)
    return f"none of {len(sizes)} instance types that suit is large enough (too little {named})"
