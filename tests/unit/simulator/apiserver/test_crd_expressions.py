"""CEL expressions beyond those in the repository's CRDs."""

import pytest

from journeyman_simulator.apiserver.crd_expressions import RuleEvaluationError, UnreadableRuleError, parse_rule

SELF = {"name": "a.example.com/b", "numbers": [1, 2, 3], "map": {"x": "1", "y": ""}, "yes": True, "size": 4}


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("self.size + 1 - 2 == 3 && self.size > -1", True),
        ("self.size == 4 ? 'four' : 'other'", "four"),
        ("self.numbers.all(n, n > 0) && !self.numbers.exists(n, n > 3)", True),
        ("self.numbers.exists_one(n, n == 2)", True),
        ("self.numbers.filter(n, n > 1).map(n, n + 1)", [3, 4]),
        ("self.map.all(key, key in ['x', 'y']) && size(self.map) == 2", True),
        ("self.name.find('^[^/]+').endsWith('example.com') && self.name.contains('/')", True),
        ("self.name.split('/')[1] == 'b' && self.name.indexOf('/') == 13", True),
        ("duration('90m') > duration('1h') && r'\\d' != '\\\\w'", True),
        ("has(self.map.x) && !has(self.map.z) && has(self.map)", True),
        ("self.numbers == [1, 2, 3] && self.yes != 1", True),
        ("self.missing == 1 || self.yes", True),  # the operand without an error decides
        ("!(self.missing == 1 && !self.yes)", True),
        ("self.numbers.exists(n, n == 1 || n.missing)", True),
    ],
)
def test_rules_have_the_values_that_cel_gives_them(rule, value):
    """The cases cover precedence, macros with their own variables, functions, and errors without effect."""
    assert parse_rule(rule)({"self": SELF}) == value


@pytest.mark.parametrize(
    "rule",
    [
        "self.missing",
        "self.numbers[3] == 1",
        "other",
        "self.name + 1 == 2",
        "self.size.all(x, true)",
        "self.name < 1",
        "self.missing || self.missing",
        "self.size && true",
        "duration('soon') == duration('1s')",
        "has(self)",
        "self.size.startsWith('4')",
    ],
)
def test_rule_on_a_missing_or_mistyped_value_is_an_error(rule):
    """The cases are missing fields and operands of different types."""
    with pytest.raises(RuleEvaluationError):
        parse_rule(rule)({"self": SELF})


@pytest.mark.parametrize(
    "rule", ["self.", "(self", "self.sorted()", "format(self)", "self ? 1", "self; true", "'open", "1 2"]
)
def test_unsupported_expression_is_refused_when_it_is_parsed(rule):
    """The message contains the rule."""
    with pytest.raises(UnreadableRuleError):
        parse_rule(rule)
