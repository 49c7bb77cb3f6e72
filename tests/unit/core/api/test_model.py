"""What all models share: cheap to import, frozen, tolerant of what is not ours."""

import subprocess
import sys

import pydantic
import pytest

from journeyman.core.api.model import parse
from journeyman.core.api.offering_state import OfferingState
from journeyman.errors import InvalidObjectError

CHECK = """
import sys
import journeyman.core.api.hashes, journeyman.core.api.node_disruption, journeyman.core.api.nodeclaim_schema
import journeyman.core.api.offering_state
from journeyman.core.api.model import Model

def kinds(base):
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)

print([kind.__name__ for kind in kinds(Model) if kind.__pydantic_complete__])
print(sorted(sys.modules.keys() & {"yaml", "kubernetes", "boto3", "cronsim", "numpy", "asyncio", "logging"}))
"""


def test_importing_the_models_builds_none_of_them_and_brings_nothing_heavy():
    """A cold start pays only for the kinds it reads."""
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"


def test_objects_are_values():
    """Nothing changes under a decision."""
    state = parse(OfferingState, {"metadata": {"name": "default"}})
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        state.kind = "Other"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], r"OfferingState \(without a name\) does not validate: Input should be a valid dictionary"),
        ({"metadata": []}, r"metadata: Expected `object`, got `array`"),
        ({"metadata": {"name": "a", "creationTimestamp": "yesterday"}}, r"creationTimestamp"),
        ({"metadata": {"name": "a"}, "kind": "NodePool"}, r"OfferingState a .* kind: Input should be 'OfferingState'"),
    ],
)
def test_what_is_no_object_of_that_kind_is_refused(raw, words):
    """Lists, odd metadata, another kind."""
    with pytest.raises(InvalidObjectError, match=words):
        parse(OfferingState, raw)
