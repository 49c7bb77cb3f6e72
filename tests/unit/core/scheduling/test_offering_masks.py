"""Offerings as bit masks: positions of bits, and booleans as a mask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from journeyman.core.scheduling.offering_masks import as_mask, lowest


@given(st.sets(st.integers(0, 200), min_size=1))
def test_lowest_is_the_smallest_position_in_the_mask(positions):
    """Higher bits do not matter."""
    assert lowest(sum(1 << position for position in positions)) == min(positions)


@given(st.lists(st.booleans(), max_size=70))
def test_a_mask_has_the_bits_that_are_true(bits):
    """Bit n stands for entry n."""
    assert as_mask(np.array(bits, dtype=bool)) == sum(1 << n for n, bit in enumerate(bits) if bit)
