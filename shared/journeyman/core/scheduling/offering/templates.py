"""NodePools as the scheduler sees them: what their nodes offer, in Karpenter's order, and which pools sit this pass out.

Restates: karpenter pkg/controllers/provisioning/scheduling/nodeclaimtemplate.go, provisioner.go `NewScheduler`.
Differs: pools of equal weight compete on price, where Karpenter takes the last by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.arrays import Bools
from journeyman.core.scheduling.offering.offers import OfferTable, offer_tables
from journeyman.core.scheduling.requirements import InvalidRequirementError, Requirements, from_labels, from_selectors
from journeyman.core.state.snapshot import Snapshot
from journeyman.errors import ConfigurationError

if TYPE_CHECKING:  # the models build validators; nothing here needs them
    from journeyman.core.api.nodepool import NodePool

BY_PRICE = "price"
FEWEST_NODES = "fewest-nodes"
NO_TYPES = "no instance type satisfies its requirements"
"""How the reason begins for which a pool sits out although its NodeClass can be used."""


class Template(Struct, frozen=True, kw_only=True, eq=False):
    """One NodePool ready for scheduling.

    `requirements` are what its nodes offer, for simulation including that they will be registered and initialized.
    `rows` are the offerings of `table` that can be had now and suit the requirements. `node_surcharge` is what the pool
    charges for a node as such, and `remark` what of its wishes could not be understood. `min_values` tells by label how
    many different values a claim must leave the cloud to choose from.
    """

    pool: NodePool
    requirements: Requirements
    table: OfferTable
    rows: Bools
    node_surcharge: float = 0.0
    remark: str = ""
    min_values: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The NodePool's name."""
        return self.pool.metadata.name

    def narrowed(self, term: Requirements) -> Requirements:
        """The term's keys, as the pool and the term together have them."""
        own = self.requirements
        return Requirements({k: own[k].intersection(wish) if k in own else wish for k, wish in term.items()})

    @property
    def order(self) -> tuple[int, bool]:
        """Templates of equal order compete; smaller goes first."""
        return -self.pool.spec.weight, self.pool.packing == FEWEST_NODES


def node_class_label(pool: NodePool) -> tuple[str, str]:
    """The label that says which NodeClass a node came from: `<group>/<lower-case kind>` and the name."""
    ref = pool.spec.template.spec.node_class_ref
    return f"{ref.group}/{ref.kind.lower()}", ref.name


def make_templates(snapshot: Snapshot, catalogue: Catalogue) -> tuple[tuple[Template, ...], dict[str, str]]:
    """Templates by weight descending, then name descending; and the pools set aside, by name, with why."""
    tables = offer_tables(catalogue)
    templates: list[Template] = []
    set_aside: dict[str, str] = {}
    for pool in sorted(snapshot.node_pools, key=lambda p: p.metadata.name, reverse=True):
        made = "static NodePools are not scaled for pods" if pool.spec.static else _template(pool, snapshot, tables)
        if isinstance(made, Template):
            templates.append(made)
        else:
            set_aside[pool.metadata.name] = made
    templates.sort(key=lambda t: t.order)  # stable: names stay descending
    return tuple(templates), dict(sorted(set_aside.items()))


def make_template(pool: NodePool, snapshot: Snapshot, catalogue: Catalogue) -> Template | str:
    """One pool's template whether or not it is scaled for pods, or why it has none; static pools open nodes by it."""
    return _template(pool, snapshot, offer_tables(catalogue))


def _template(pool: NodePool, snapshot: Snapshot, tables: Mapping[str, OfferTable]) -> Template | str:
    """The pool's template, or why it has none."""
    reason = _not_usable(pool, snapshot)
    if reason:
        return reason
    table = tables.get(pool.metadata.name)
    if table is None or not table.types:
        return "no instance types are known for its NodeClass"
    try:
        requirements = _requirements(pool)
    except InvalidRequirementError as error:
        return error.message
    suitable = table.rows_meeting(requirements)
    if not suitable.any():
        unmet = table.unmet(requirements)
        return f"{NO_TYPES}{f': there is none with {unmet}' if unmet else ''}"
    node_surcharge, unread = _node_surcharge(pool)
    return Template(
        pool=pool,
        requirements=requirements,
        table=table,
        rows=suitable & table.available,
        node_surcharge=node_surcharge,
        remark="; ".join(filter(None, (unread, _unknown_packing(pool), _unknown_rebalance(pool)))),
        min_values={key: r.min_values for key, r in sorted(requirements.items()) if r.min_values},
    )


def _node_surcharge(pool: NodePool) -> tuple[float, str]:
    """What the pool charges for a node, and why that is nothing if it cannot be read."""
    try:
        return pool.node_surcharge, ""
    except ConfigurationError as error:
        return 0.0, f"{error.message}; its nodes are planned without it"


def _unknown_packing(pool: NodePool) -> str:
    """What is wrong with the way of packing that the pool asks for; empty if nothing."""
    if pool.packing in {BY_PRICE, FEWEST_NODES}:
        return ""
    return (
        f"annotation {labels.PACKING}: {pool.packing!r} is neither {BY_PRICE} nor {FEWEST_NODES}; packed by {BY_PRICE}"
    )


def _unknown_rebalance(pool: NodePool) -> str:
    """What is wrong with how the pool asks to be rebalanced; empty if nothing."""
    asked = pool.metadata.annotations.get(labels.REBALANCE, labels.REBALANCE_REPLACE)
    if asked == labels.REBALANCE_REPLACE:
        return ""
    return f"annotation {labels.REBALANCE}: {asked!r} is not {labels.REBALANCE_REPLACE}; recommendations are only told"


def _not_usable(pool: NodePool, snapshot: Snapshot) -> str:
    if pool.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    node_class = snapshot.node_class_of(pool)
    ref = pool.spec.template.spec.node_class_ref
    if node_class is None:
        return f"{ref.kind} {ref.name} does not exist"
    if node_class.deleting or not node_class.ready:
        why = "is being deleted" if node_class.deleting else f"is not ready: {node_class.message or node_class.reason}"
        return f"{ref.kind} {ref.name} {why}"
    return ""


def _requirements(pool: NodePool) -> Requirements:
    template = pool.spec.template
    class_key, class_name = node_class_label(pool)
    fixed = {
        **template.metadata.labels,
        labels.NODEPOOL: pool.metadata.name,
        class_key: class_name,
        labels.REGISTERED: "true",
        labels.INITIALIZED: "true",
    }
    return from_selectors(template.spec.requirements) & from_labels(fixed)
