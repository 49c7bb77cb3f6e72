"""Rules broken on purpose: one line of the product is exchanged for as long as a story is told, to see that a judge objects.

The product has no hooks for this. The code of one function is replaced, and the line must be found exactly once: a mutant
whose line has gone fails its test, and is rewritten.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from msgspec import Struct

from journeyman.cloud.aws import launching
from journeyman.core.disruption import budgets, commands
from journeyman.core.lifecycle import drain, garbage
from journeyman.simulate.faults.rules import Rule
from journeyman.simulate.faults.rules.budgets import BudgetsHold
from journeyman.simulate.faults.rules.commands import ReplacementsFirst
from journeyman.simulate.faults.rules.evictions import PodsGoAsAgreed
from journeyman.simulate.faults.rules.instances import NoInstanceWithoutAClaim, OneInstanceForAClaim


class Mutant(Struct, frozen=True, kw_only=True):
    """`old` becomes `new` in that function; `rule` is the judge who must see it."""

    name: str
    function: Callable[..., Any]
    old: str
    new: str
    rule: type[Rule]


MUTANTS = (
    Mutant(
        name="a token that changes with the claim",
        function=launching.client_token,
        old="answered = answered_failures(claim)",
        new="answered = int(claim.metadata.resource_version)",
        rule=OneInstanceForAClaim,
    ),
    Mutant(
        name="a drain that is deaf to do-not-disrupt",
        function=drain.drain,
        old=" if is_disruptable(p, now)",
        new="",
        rule=PodsGoAsAgreed,
    ),
    Mutant(
        name="a budget of so many nodes that allows all of them",
        function=budgets._share,
        old="return int(nodes)",
        new="return total",
        rule=BudgetsHold,
    ),
    Mutant(
        name="a command that takes a registered replacement for a ready one",
        function=commands.advance,
        old="is_true(c.status.conditions, INITIALIZED)",
        new="is_true(c.status.conditions, 'Registered')",
        rule=ReplacementsFirst,
    ),
    Mutant(
        name="no garbage collection",
        function=garbage.collect,
        old="return orphans(snapshot, cloud, orphan_age) + lost(snapshot, cloud)",
        new="return Plan()",
        rule=NoInstanceWithoutAClaim,
    ),
)


@contextmanager
def grafted(mutant: Mutant) -> Iterator[None]:
    """The product with that line exchanged."""
    function = mutant.function
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutant.old) == 1, f"{mutant.name}: {mutant.old!r} is not there exactly once"
    flags = __future__.annotations.compiler_flag
    made: dict[str, Any] = {}
    exec(
        compile(source.replace(mutant.old, mutant.new), function.__code__.co_filename, "exec", flags),
        function.__globals__,
        made,
    )
    before = function.__code__
    function.__code__ = made[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = before
