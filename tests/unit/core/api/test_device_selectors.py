"""Device selectors: the supported part of CEL, and errors for the rest."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.api.device_selectors import (
    DeviceFacts,
    InvalidSelectorError,
    SelectorEvaluationError,
    matches,
    parse_selector,
)
from journeyman.core.api.dra import Device, DeviceAttribute, DeviceCapacity

A100 = DeviceFacts.of(
    "gpu.example.com",
    Device(
        name="gpu-0",
        attributes={
            "model": DeviceAttribute(string="NVIDIA A100-SXM4-40GB"),
            "cores": DeviceAttribute(int_=108),
            "healthy": DeviceAttribute(bool_=True),
            "driverVersion": DeviceAttribute(version="550.54.15-rc.2"),
            "pci.example.com/root": DeviceAttribute(string="pci0000:00"),
        },
        capacity={"memory": DeviceCapacity(value="40Gi")},
    ),
)
MINE = 'device.attributes["gpu.example.com"]'
SIZE = 'device.capacity["gpu.example.com"].memory'


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ('device.driver == "gpu.example.com"', True),
        ('device.driver == "nic.example.com"', False),
        (f'{MINE}.model.lowerAscii().matches("^.*a100.*$")', True),
        (f"{MINE}.model.startsWith('NVIDIA') && {MINE}.model.contains('H100')", False),
        (f"{MINE}.cores >= 100 && {MINE}['cores'] < 109", True),
        (f"{MINE}.cores in [54, 108]", True),
        (f"{MINE}.healthy", True),
        (f"!{MINE}.healthy || {MINE}.cores == -1", False),
        (f'{MINE}.driverVersion.isGreaterThan(semver("550.54.15-rc.1"))', True),
        (f'{MINE}.driverVersion.isLessThan(semver("550.54.15"))', True),
        (f"{MINE}.driverVersion.major() == 550", True),
        (f'{SIZE}.compareTo(quantity("40Gi")) == 0', True),
        (f'{SIZE}.isGreaterThan(quantity("40G"))', True),
        (f'"cores" in {MINE} && !("tensors" in {MINE})', True),
        (f"has({MINE}.cores) && !has({MINE}.tensors)", True),
        ('"cores" in device.attributes["nic.example.com"]', False),
        ('device.attributes["pci.example.com"].root == "pci0000:00"', True),
        ("device.allowMultipleAllocations == false", True),
        (f"({MINE}.cores > 200 ? {MINE}.tensors : {MINE}.healthy)", True),
        (f'{MINE}.cores == "108"', False),
    ],
)
def test_supported_selectors_have_the_same_result_as_in_kubernetes(expression, selected):
    """They use attributes, capacity, versions, strings and operators."""
    assert parse_selector(expression).selects(A100) is selected


@pytest.mark.parametrize(
    "expression",
    [f"{MINE}.tensors == 4", f"{MINE}.model > 3", "device.driver", f"{SIZE} > 3", f"{MINE}.tensors == 4 && true"],
)
def test_selector_without_a_value_for_a_device_raises_an_error(expression):
    """The attribute is missing, or the values do not compare."""
    with pytest.raises(SelectorEvaluationError):
        parse_selector(expression).selects(A100)


def test_logical_operator_ignores_an_error_if_the_other_side_decides():
    """A missing attribute on one side is such an error."""
    assert parse_selector(f"{MINE}.tensors == 4 || true").selects(A100)
    assert not parse_selector(f"false && {MINE}.tensors == 4").selects(A100)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("this is not CEL", "at character 1: this is not a supported name"),
        ('device.driver == "a', "at character 18: '\"a' is not supported"),
        ("device.driver ==", "it is incomplete"),
        ("", "it is incomplete"),
        ("device.uuid == 'a'", "device.uuid does not exist"),
        ("[1, 2].exists(x, x == 1)", "x is not a supported name"),
        (f"{MINE}.cores + 1 == 109", "'+ 1 == 109' is not supported"),
        (f"{MINE}.model.matches('(a+)+$')", "pattern '(a+)+$' is not supported"),
        (f'{SIZE}.isLessThan(quantity("forty"))', "'forty' is not a quantity"),
        (f"{MINE}.model.reverse() == 'x'", "reverse() with 0 arguments is not a supported function"),
        ("(" * 100 + "true" + ")" * 100, "nested too deeply"),
        ("device.driver" + ".lowerAscii()" * 100, "too much follows"),
        (f'device.driver == "{"a" * 11_000}"', "too long"),
    ],
)
def test_unsupported_selector_is_rejected_with_its_position(expression, message):
    """The error says what is not supported."""
    with pytest.raises(InvalidSelectorError, match=re.escape(message)):
        parse_selector(expression)


@given(
    text=st.text("ab.", max_size=8),
    pieces=st.lists(st.sampled_from(["a", "b", ".", ".*", r"\."]), max_size=6),
    starts=st.booleans(),
    ends=st.booleans(),
)
def test_simple_patterns_match_as_regular_expressions_do(text, pieces, starts, ends):
    """The match piece by piece gives the same result as backtracking."""
    pattern = "^" * starts + "".join(pieces) + "$" * ends

    assert matches(text, pattern) == (re.search(pattern, text) is not None)


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_rejected(text):
    """No text raises another error."""
    try:
        found = parse_selector(text).text
    except InvalidSelectorError as error:
        found = error.message

    assert text in found or repr(text) in found
