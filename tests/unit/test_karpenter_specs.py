"""Which tests restate Karpenter's specs (karpenter_specs.toml)."""

from __future__ import annotations


def test_each_listed_test_exists(unknown_specs):
    """A test that is renamed, moved or merged takes its entry along."""
    assert unknown_specs == frozenset()
