"""The part of Terraform's language that the deployment on Huawei Cloud uses."""

import json

import pytest

from journeyman.errors import ConfigurationError
from journeyman_simulator.huawei_account.terraform import TerraformModule, read_module
from journeyman_simulator.huawei_account.terraform_expressions import json_text


def module(folder, text, computed=lambda kind, values, name: f"{kind}-{name}", **variables):
    (folder / "main.tf").write_text(text)
    return TerraformModule(read_module(folder), variables, computed, lambda path: path.encode())


def value(folder, expression, more=""):
    return module(folder, f'output "o" {{\n  value = {expression}\n}}\n{more}').outputs()["o"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('"a-${1 + 2}-${true}"', "a-3-true"),
        ('"${[1]}"', [1]),
        ('"$${a}\\n"', "${a}\n"),
        ("{ a = 1, b-c = [true, null] }", {"a": 1, "b-c": [True, None]}),
        ('{ "x y" = 1 }', {"x y": 1}),
        ("merge({ a = 1 }, { a = 2, b = 3 })", {"a": 2, "b": 3}),
        ('concat(["a"], [], ["b", "c"])', ["a", "b", "c"]),
        ('jsonencode({ b = "<&>", a = [1, "ä"] })', '{"a":[1,"ä"],"b":"\\u003c\\u0026\\u003e"}'),
        ("{ for k, v in { a = 1, b = 2 } : k => v + 1 if v > 1 }", {"b": 3}),
        ('[for v in ["a", "b"] : "${v}!"]', ["a!", "b!"]),
        ("1 > 2 || 2 >= 2 && 1 != 1 ? 1 : 2", 2),
        ('can(regex("^a+$", "b")) ? 1 : 2', 2),
        ('contains(["a"], "a")', True),
        ("one([])", None),
        ('one([{ id = "x" }][*].id)', "x"),
        ('length(toset(["a", "a"]))', 1),
        ('substr(filesha256("a"), 0, 4)', "ca97"),
        ('filebase64("ab")', "YWI="),
        ('replace("a-b-c", "-", "_")', "a_b_c"),
        ('"${path.module}/x"', "./x"),
        ("[{ a = [1, 2] }][0].a[1]", 2),
    ],
)
def test_expression_has_terraforms_value(tmp_path, expression, expected):
    """Recorded with `terraform console` 1.11."""
    assert value(tmp_path, expression) == expected


def test_json_is_terraforms():
    """FunctionGraph's limits count its characters."""
    assert json_text({"b": {"y": 1, "x": None}, "a": "é"}) == '{"a":"é","b":{"x":null,"y":1}}'


RESOURCES = """
variable "names" {
  type    = list(string)
  default = ["a", "b"]
}

data "cloud_account" "current" {}

locals {
  last = local.both["b"].id # declared below
  both = cloud_thing.each
}

resource "cloud_thing" "each" {
  for_each = toset(var.names)

  name  = "thing-${each.key}"
  owner = data.cloud_account.current.id
  none  = null

  part {
    number = length(each.value)
  }
}

resource "cloud_other" "some" {
  count = length(var.names) > 1 ? 1 : 0
  last  = local.last
}

resource "cloud_other" "one" {
  first = one(cloud_other.some[*].last)
}
"""


def test_references_are_evaluated_when_they_are_needed(tmp_path):
    """Through locals, for_each, count and what the cloud computes, in any order."""
    found = module(tmp_path, RESOURCES, lambda kind, values, name: f"{kind}/{values.get('name', '')}/{name}")

    assert found.resources("cloud_thing") == {
        f"each.{key}": {"name": f"thing-{key}", "owner": "cloud_account//id", "part": [{"number": 1}]} for key in "ab"
    }
    assert found.resources("cloud_other") == {
        "some.0": {"last": "cloud_thing/thing-b/id"},
        "one": {"first": "cloud_thing/thing-b/id"},
    }


def test_variables_that_are_no_text_are_json(tmp_path):
    """As in environment variables."""
    found = module(tmp_path, RESOURCES, names='["a"]')

    assert set(found.resources("cloud_thing")) == {"each.a"}
    assert found.resources("cloud_other") == {"one": {}}
    with pytest.raises(ConfigurationError, match="names is not JSON"):
        module(tmp_path, RESOURCES, names="a")


def test_missing_and_unknown_variables_are_errors(tmp_path):
    """They name the variable."""
    text = 'variable "region" {\n  type = string\n}\n'

    with pytest.raises(ConfigurationError, match="region is not set"):
        module(tmp_path, text)
    with pytest.raises(ConfigurationError, match="no variable zone"):
        module(tmp_path, text, region="r", zone="z")


CHECKED = """
variable "size" {
  type = number
  validation {
    condition     = var.size > 0
    error_message = "size is ${var.size}."
  }
}
resource "cloud_thing" "one" {
  size = var.size
  lifecycle {
    precondition {
      condition     = var.size < 10
      error_message = "Too large."
    }
  }
}
"""


def test_validations_and_preconditions_stop_with_their_messages(tmp_path):
    """Of variables at once, of resources when they are created."""
    assert module(tmp_path, CHECKED, size="1").resources("cloud_thing") == {"one": {"size": 1}}
    with pytest.raises(ConfigurationError, match=r"the variable size: size is 0\."):
        module(tmp_path, CHECKED, size="0")
    with pytest.raises(ConfigurationError, match=r"cloud_thing\.one: Too large\."):
        module(tmp_path, CHECKED, size="10").resources("cloud_thing")


@pytest.mark.parametrize(
    "expression", ["upper(1)", "cloud_thing.missing.id", "local.none", "1 * 2", "-[1]", '"${null}-"', "<<E\na\nE\n"]
)
def test_expression_that_is_not_understood_is_quoted_with_its_file(tmp_path, expression):
    """So that the evaluator is extended, rather than a value guessed."""
    with pytest.raises(ConfigurationError, match=r"(?s)main\.tf: .+ cannot be evaluated"):
        value(tmp_path, expression)


def test_text_that_is_no_terraform_is_an_error(tmp_path):
    """It names the file."""
    with pytest.raises(ConfigurationError, match=r"main\.tf is not valid"):
        module(tmp_path, "resource {")


def test_json_round_trip_of_nested_encodings(tmp_path):
    """A function's environment has JSON in JSON."""
    text = value(tmp_path, 'jsonencode({ a = jsonencode({ b = "c" }) })')

    assert json.loads(json.loads(text)["a"]) == {"b": "c"}
