"""The scheduler: pods in, planned nodes out.

In this order: pods become classes, and classes ladders of rows (`question`); constraints between pods become domains
and rules about one node; nodes that exist are filled; what is left is packed onto new nodes, NodePools of greater
weight first, by price within (`bulk`); Karpenter's own way competes where there are few pods (`plans`); every new node
keeps the instance types that would serve nearly as cheaply (`choosing`); and what could not be placed says why
(`explain`).

Pure: same snapshot, same catalogue, same answer, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from journeyman.core.api.objects import Pod
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.bound import lower_bound_of
from journeyman.core.scheduling.options import MinValuesPolicy, Options
from journeyman.core.scheduling.plans import Plan, answer
from journeyman.core.scheduling.pods import is_currently_reschedulable, is_provisionable
from journeyman.core.scheduling.question import Asked, Ground, ask
from journeyman.core.scheduling.results import PodError, Results
from journeyman.core.scheduling.standing.existing import is_leaving
from journeyman.core.state.snapshot import Snapshot

__all__ = ["Options", "Scheduler", "pods_to_place", "solve"]


def solve(
    snapshot: Snapshot,
    catalogue: Catalogue,
    *,
    pods: Sequence[Pod] | None = None,
    without_nodes: frozenset[str] = frozenset(),
    options: Options = Options(),  # noqa: B008 - a frozen value
) -> Results:
    """Place pods on existing and new nodes.

    Args:
        snapshot: The cluster.
        catalogue: What can be launched, by NodePool.
        pods: The pods to place, wherever they are now; by default `pods_to_place`.
        without_nodes: Names of StateNodes that are to be thought away, with the pods on them (consolidation asks what
            would become of a cluster without them).
        options: Policies, and how much choice of instance types a claim keeps.

    Returns:
        New claims by pool and pods, fillings of existing nodes, and an error for every pod without a place.
    """
    return Scheduler(snapshot, catalogue, options).solve(pods, without_nodes)


def pods_to_place(snapshot: Snapshot) -> tuple[Pod, ...]:
    """Provisionable pods, and those on nodes marked for deletion that can be moved now.

    Restates: karpenter pkg/controllers/provisioning/provisioner.go `Schedule`.
    """
    pending = [pod for pod in snapshot.pods if is_provisionable(pod)]
    leaving = [
        pod
        for node in snapshot.state_nodes
        if is_leaving(node)
        for pod in node.pods
        if is_currently_reschedulable(pod, snapshot.pdbs, snapshot.now)
    ]
    return (*pending, *leaving)


class Scheduler:
    """One snapshot and catalogue, prepared once, for one or many questions (consolidation asks many)."""

    def __init__(self, snapshot: Snapshot, catalogue: Catalogue, options: Options = Options()) -> None:  # noqa: B008
        self.snapshot = snapshot
        self._ground = Ground.of(snapshot, catalogue, options)

    def solve(self, pods: Sequence[Pod] | None = None, without_nodes: frozenset[str] = frozenset()) -> Results:
        """See `solve`."""
        considered = pods_to_place(self.snapshot) if pods is None else tuple(pods)
        if not considered:  # most runs of a cluster at rest, or of one that waits for its nodes
            return Results(set_aside_pools=self._ground.set_aside, remarks=self._ground.remarks)
        asked = ask(self._ground, considered, without_nodes)
        plan = answer(asked)
        return Results(
            new_claims=tuple(sorted(plan.claims, key=lambda c: (c.node_pool, c.pods))),
            existing=plan.existing,
            pod_errors=dict(sorted({**asked.errors, **self._errors(asked, plan)}.items())),
            price=plan.price,
            lower_bound=lower_bound_of(asked.question, plan.draft.opened) if self._ground.options.bound else 0.0,
            set_aside_pools=self._ground.set_aside,
            remarks=self._ground.remarks,
            devices=plan.devices,
        )

    @property
    def _unusable(self) -> Mapping[str, str]:
        """NodePools that sit this pass out, with why; also those that could not be read in the first place."""
        unread = {item.name: item.why for item in self.snapshot.set_aside if item.kind == "NodePool"}
        return {**unread, **self._ground.set_aside}

    def _errors(self, asked: Asked, plan: Plan) -> dict[str, PodError]:
        """An error for each pod without a place; pods of a class share it."""
        if not plan.unplaced:
            return {}
        # A cold start that leaves nobody out does without.
        from journeyman.core.scheduling.explaining.explain import Explainer  # noqa: PLC0415

        question = asked.question
        explainer = Explainer(
            axes=question.axes,
            stalls=question.stalls,
            headroom=plan.draft.headroom,
            set_aside=self._unusable,
            others=(
                *(entry.group for entry in question.repelled),
                *(group for row in question.rows for group in row.anti_affinities if group.id not in row.soft),
            ),
            strict_min_values=question.options.min_values is MinValuesPolicy.STRICT,
        )
        errors: dict[str, PodError] = {}
        for family, keys in plan.unplaced.items():
            row = question.ladders[family][-1]
            stuck = plan.draft.stuck.get(family, "")
            error = explainer.explain(question.rows[row], question.requests[row], stuck=stuck)
            errors.update(dict.fromkeys(keys, error))
        return errors
