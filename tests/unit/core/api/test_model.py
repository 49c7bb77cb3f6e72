"""The models' base: cheap to import, immutable, tolerant of unknown fields."""

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
import journeyman.core.api.offering_state, journeyman.core.api.nodepool, journeyman.core.api.ec2nodeclass
import journeyman.core.api.acs_ecsnodeclass, journeyman.core.api.ecs_settings, journeyman.core.api.ccenodeclass
from journeyman.core.api.model import Model

def kinds(base):
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)

print([kind.__name__ for kind in kinds(Model) if kind.__pydantic_complete__])
print(sorted(sys.modules.keys() & {"yaml", "kubernetes", "boto3", "cronsim", "numpy", "asyncio", "logging"}))
"""


def test_importing_models_builds_no_validators():
    """A cold start builds only the validators of the kinds that it reads."""
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"


@pytest.mark.parametrize(
    ("module", "others"),
    [
        (
            "journeyman.cloud.aws.provider",
            ("ecsnodeclass", "acs_ecsnodeclass", "ccenodeclass", "kubelet_configuration", "ecs_settings"),
        ),
        ("journeyman.core.api.ecs_settings", ("ec2nodeclass", "acs_ecsnodeclass", "ecsnodeclass", "nodepool")),
        ("journeyman.core.api.ccenodeclass", ("ec2nodeclass", "acs_ecsnodeclass", "ecsnodeclass", "nodepool")),
    ],
)
def test_functions_import_no_nodeclass_of_another_cloud(module, others):
    """Defining the models costs time on a cold start."""
    script = f"import sys, {module}; print([m for m in {others} if f'journeyman.core.api.{{m}}' in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_models_are_immutable():
    """No code can change the input of a decision."""
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
def test_object_of_another_kind_is_rejected(raw, words):
    """Lists and invalid metadata are rejected, too."""
    with pytest.raises(InvalidObjectError, match=words):
        parse(OfferingState, raw)
