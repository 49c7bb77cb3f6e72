"""The variables of a description of Serverless Devs."""

import pytest

from journeyman.errors import ConfigurationError
from journeyman_simulator.alibaba_account.serverless_devs import DescriptionVariables

VARS = {"region": "${env('REGION', 'cn-hangzhou')}", "name": "j", "must": "${env('MUST')}"}


def value(text, **environment):
    outputs = {"cloud": {"Role": "acs:ram::1:role/r"}}
    return DescriptionVariables({"vars": VARS}, environment, {"AccountID": "1"}, outputs.__getitem__).value(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        (7, 7),
        ("${vars.name}-x", "j-x"),
        ("${vars.region}", "cn-hangzhou"),
        ("acs:mns:${vars.region}:${config('AccountID')}:/queues/q", "acs:mns:cn-hangzhou:1:/queues/q"),
        ("${resources.cloud.output.Role}", "acs:ram::1:role/r"),
        ("${json(env('ENABLED', 'false'))}", False),
        ("${env('EMPTY', '')}", ""),
        ({"a": ["${vars.name}"]}, {"a": ["j"]}),
    ],
)
def test_variable_has_its_value_and_type(text, expected):
    """Serverless Devs 3.1.10 shows the same with `s preview`."""
    assert value(text) == expected


def test_environment_overrides_the_default():
    """It is read when the description is deployed."""
    assert value("${vars.region}", REGION="cn-beijing") == "cn-beijing"


@pytest.mark.parametrize("text", ["${vars.must}", "${vars.none}", "${file('x')}"])
def test_variable_without_a_value_is_an_error(text):
    """The error names it."""
    with pytest.raises(ConfigurationError):
        value(text)
