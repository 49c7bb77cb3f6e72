"""Numbers, lists and amounts in messages."""

import pytest

from journeyman.core.api.wording import counted, describe_amount, listed, readable, verb_of


@pytest.mark.parametrize(("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")])
def test_a_number_has_the_form_of_its_noun(number, text):
    """And so has the verb."""
    assert counted(number, "node") == text
    assert verb_of(number, "stays", "stay") == ("stays" if number == 1 else "stay")


def test_a_long_list_shows_the_first_entries():
    """One more than is shown is shown as well: its number would be no shorter."""
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"], "and") == "a, b and c"
    assert listed(list("abcdef")) == "a, b, c, d, e or f"
    assert listed(list("abcdefg")) == "a, b, c, d, e or 2 others"


@pytest.mark.parametrize(
    ("name", "amount", "down", "up"),
    [
        ("cpu", 1500, "1.5 vCPU", "1.5 vCPU"),
        ("memory", 8 << 30, "8Gi memory", "8Gi memory"),
        ("memory", 123456789123, "114.97Gi memory", "114.98Gi memory"),
        ("memory", 700, "700 bytes of memory", "700 bytes of memory"),
        ("ephemeral-storage", 1 << 50, "1Pi ephemeral-storage", "1Pi ephemeral-storage"),
        ("hugepages-2Mi", 1 << 21, "2Mi hugepages-2Mi", "2Mi hugepages-2Mi"),
        ("nvidia.com/gpu", 2, "2 nvidia.com/gpu", "2 nvidia.com/gpu"),
        ("nodes", 1, "1 node", "1 node"),
        ("pods", 110, "110 pods", "110 pods"),
    ],
)
def test_amounts_have_a_unit(name, amount, down, up):
    """Bytes are rounded to hundredths: what is offered down, what is needed up."""
    assert describe_amount(name, amount) == down
    assert describe_amount(name, amount, round_up=True) == up
    assert readable("cpu", 1500) == "1500m"
