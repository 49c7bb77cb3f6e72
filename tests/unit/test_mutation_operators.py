"""Mutants differ from the original in one operator each."""

import ast

from tests.mutation.operators import mutants, mutated

SOURCE = """
LIMIT = 1 + 1

def chosen(xs, most):
    if not xs or len(xs) < most:
        return min(xs) - 1
    def is_none(x: int | None) -> bool | None:
        return x is None
    return any(is_none(x) for x in xs)
"""


def test_each_operator_in_a_function_body_makes_one_mutant(tmp_path):
    """Constants of the module and annotations are not executed per call and are left alone."""
    path = tmp_path / "module.py"
    path.write_text(SOURCE)

    changes = {mutant.change for mutant in mutants(path)}
    texts = {ast.unparse(mutated(mutant)) for mutant in mutants(path)}

    assert changes == {"Or -> And", "not x -> x", "Lt -> LtE", "Sub -> Add", "min -> max", "any -> all", "Is -> IsNot"}
    assert len(texts) == len(changes)
    assert ast.unparse(ast.parse(SOURCE)) not in texts
    assert all("LIMIT = 1 + 1" in text for text in texts)
