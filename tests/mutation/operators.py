"""Single-operator mutations of a module's syntax tree."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """One change: the `number`-th mutable place of a module, and what the change is.

    `name` is the function, the change, and how many such changes of the function come before: edits elsewhere keep it.
    """

    path: Path
    number: int
    line: int
    change: str
    name: str


def mutants(path: Path) -> list[Mutant]:
    """Return every single-operator mutant of a module, in the order of its syntax tree."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for number, (function, line, change) in enumerate(_changes(tree)):
        name = f"{function} {change}"
        found.append(Mutant(path, number, line, change, f"{name} {seen[name]}"))
        seen[name] += 1
    return found


def mutated(mutant: Mutant) -> ast.Module:
    """Return the module's syntax tree with that one change."""
    tree = ast.parse(mutant.path.read_text(encoding="utf-8"))
    changes = _changes(tree)
    for _ in range(mutant.number + 1):
        next(changes)
    return ast.fix_missing_locations(tree)


def _changes(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Make one change after another, undoing the last: yield its function, line and words while it is in place."""
    for function, node in _executed(tree):
        before = copy.copy(node.__dict__)
        for change in _apply(node):
            yield function, node.lineno, change
            node.__dict__.clear()
            node.__dict__.update(before)


def _executed(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """Yield the nodes of functions' bodies once each; annotations, defaults and constants of modules are left out."""
    seen: set[ast.AST] = set()
    for node in ast.walk(tree):
        given = node.returns if isinstance(node, ast.FunctionDef) else getattr(node, "annotation", None)
        if given is not None:
            seen.update(ast.walk(given))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in (node for statement in function.body for node in ast.walk(statement)):
                if isinstance(node, _MUTABLE) and node not in seen:
                    seen.add(node)
                    yield function.name, node


_MUTABLE = (ast.Compare, ast.BinOp, ast.AugAssign, ast.BoolOp, ast.UnaryOp, ast.Call)


def _apply(node: ast.AST) -> Iterator[str]:
    """Change the node in place in each way that there is; the caller undoes each."""
    if isinstance(node, ast.Compare):
        ops = list(node.ops)
        for index, op in enumerate(ops):
            if replacement := COMPARISONS.get(type(op)):
                node.ops = [*ops[:index], replacement(), *ops[index + 1 :]]
                yield f"{type(op).__name__} -> {replacement.__name__}"
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        if replacement_ := ARITHMETIC.get(type(node.op)):
            change = f"{type(node.op).__name__} -> {replacement_.__name__}"
            node.op = replacement_()
            yield change
    elif isinstance(node, ast.BoolOp):
        change = "And -> Or" if isinstance(node.op, ast.And) else "Or -> And"
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield change
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            node.op, node.operand = ast.Not(), ast.UnaryOp(op=ast.Not(), operand=node.operand)
            yield "not x -> x"
        elif isinstance(node.op, ast.USub):
            node.op = ast.UAdd()
            yield "-x -> +x"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        change = f"{node.func.id} -> {CALLS[node.func.id]}"
        node.func = ast.copy_location(ast.Name(id=CALLS[node.func.id], ctx=ast.Load()), node.func)
        yield change
