"""Reads a Terraform module, and evaluates its resources with values of its variables.

A resource's attributes are those of its block. Attributes that only the cloud knows, such as ids, come from a `Computed`.
References are evaluated when they are needed, so the order of blocks has no meaning, as in Terraform.

Restates: Terraform language documentation, "for_each", "count", "Input variables", "Custom conditions".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import hcl2
from lark.exceptions import LarkError
from msgspec import Struct

from journeyman.errors import ConfigurationError
from journeyman_simulator.huawei_account.terraform_expressions import (
    ExpressionEvaluator,
    Scope,
    name_of,
    parts_of,
    source_of,
    trees_of,
)

Computed = Callable[[str, Mapping[str, Any], str], Any]
"""Returns an attribute that the cloud computes, by the type of the resource or data source, its other attributes and the name."""
_ONLY: Final = ""
"""The key of the instance of a resource without for_each and count."""
_META_ARGUMENTS: Final = frozenset({"count", "for_each"})


class Block(Struct, frozen=True, kw_only=True):
    """A block of a module: its type, its labels and its content, whose expressions are not evaluated."""

    kind: str
    labels: tuple[str, ...]
    attributes: Mapping[str, Any]
    blocks: tuple[Block, ...]
    file: str


def read_module(folder: Path) -> tuple[Block, ...]:
    """Return the blocks of a folder's *.tf files. Raises ConfigurationError if a file is not Terraform's language."""
    blocks: list[Block] = []
    for path in sorted(folder.glob("*.tf")):
        try:
            (body,) = hcl2.parses_to_tree(path.read_text()).children
        except LarkError as error:
            raise ConfigurationError(f"{path.name} is not valid: {error}", to_do="run terraform fmt") from error
        blocks += _content(body, path.name)[1]
    return tuple(blocks)


class LazyValues(Mapping[str, Any]):
    """A mapping whose values are evaluated when they are read."""

    def __init__(self, names: Iterable[str], value: Callable[[str], Any]) -> None:
        self._names = tuple(names)
        self._value = value

    def __getitem__(self, name: str) -> Any:
        """Return the value of a name."""
        return self._value(name)

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._names)


class TerraformModule:
    """A module with values of its variables.

    Args:
        blocks: The result of `read_module`.
        variables: The values of variables as environment variables have them (TF_VAR_…): other types than text are JSON.
        computed: Returns what only the cloud knows.
        read_file: Returns the content of a file that an expression reads.

    Raises:
        ConfigurationError: A variable is missing, unknown or invalid.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        variables: Mapping[str, str],
        computed: Computed,
        read_file: Callable[[str], bytes] = lambda path: Path(path).read_bytes(),
    ) -> None:
        self._computed = computed
        self._expressions = ExpressionEvaluator(read_file)
        self._blocks = {(block.kind, *block.labels): block for block in blocks if block.kind != "locals"}
        declared = {block.labels[0]: block for block in self._of_kind("variable")}
        if unknown := variables.keys() - declared.keys():
            raise ConfigurationError(
                f"the module has no variable {', '.join(sorted(unknown))}", to_do="correct the name"
            )
        self.variables = {name: self._variable(block, variables.get(name)) for name, block in declared.items()}
        expressions = {n: (tree, b.file) for b in blocks if b.kind == "locals" for n, tree in b.attributes.items()}
        known: dict[str, Any] = {}

        def local(name: str) -> Any:
            if name not in known:
                expression, file = expressions[name]
                known[name] = self._expressions.value(expression, self._scope, file)
            return known[name]

        self._scope: Scope = {
            "var": self.variables,
            "local": LazyValues(expressions, local),
            "path": {"module": "."},
            "data": self._references("data"),
            **self._references("resource"),
        }
        for name, block in declared.items():
            self._check(block, "validation", {"var": self.variables}, f"the variable {name}")

    def resources(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the evaluated resources of a type: by their names, and behind a dot their keys if they have any.

        Raises:
            ConfigurationError: A precondition does not hold, or an expression cannot be evaluated.
        """
        found: dict[str, dict[str, Any]] = {}
        for block in self._of_kind("resource"):
            if block.labels[0] == kind:
                for key, scope in self._instances(block):
                    address = block.labels[1] if key == _ONLY else f"{block.labels[1]}.{key}"
                    for nested in block.blocks:
                        self._check(nested, "precondition", scope, f"{kind}.{address}")
                    found[address] = self._evaluated(block, scope)
        return found

    def outputs(self) -> dict[str, Any]:
        """Return the outputs."""
        return {
            block.labels[0]: self._expressions.value(block.attributes["value"], self._scope, block.file)
            for block in self._of_kind("output")
        }

    def _of_kind(self, kind: str) -> list[Block]:
        return [block for block in self._blocks.values() if block.kind == kind]

    def _variable(self, block: Block, given: str | None) -> Any:
        name = block.labels[0]
        if given is None:
            if "default" not in block.attributes:
                raise ConfigurationError(f"the variable {name} is not set", variable=name, to_do=f"set TF_VAR_{name}")
            return self._expressions.value(block.attributes["default"], {}, block.file)
        try:
            return given if source_of(block.attributes["type"]) == "string" else json.loads(given)
        except ValueError as error:
            raise ConfigurationError(
                f"the variable {name} is not JSON: {given}", variable=name, to_do="correct it"
            ) from error

    def _check(self, block: Block, kind: str, scope: Scope, subject: str) -> None:
        for condition in block.blocks:
            if condition.kind == kind:
                holds, message = (condition.attributes[name] for name in ("condition", "error_message"))
                if not self._expressions.value(holds, scope, block.file):
                    text = self._expressions.value(message, scope, block.file)
                    raise ConfigurationError(f"{subject}: {text}", to_do="correct the settings")

    def _references(self, kind: str) -> dict[str, Any]:
        """Return what the names of resources or data sources stand for, by type."""
        names: dict[str, list[str]] = {}
        for block in self._of_kind(kind):
            names.setdefault(block.labels[0], []).append(block.labels[1])
        return {type_: LazyValues(of_type, self._named(kind, type_)) for type_, of_type in names.items()}

    def _named(self, kind: str, type_: str) -> Callable[[str], Any]:
        return lambda name: self._reference(self._blocks[kind, type_, name])

    def _reference(self, block: Block) -> Any:
        """Return what a reference to a resource is: an instance, all of them by key, or all of them in order."""
        instances = {key: self._instance(block, scope) for key, scope in self._instances(block)}
        if "count" in block.attributes:
            return list(instances.values())
        return instances if "for_each" in block.attributes else instances[_ONLY]

    def _instances(self, block: Block) -> Iterator[tuple[str, Scope]]:
        """Yield the keys of a resource's instances, and what names stand for in its expressions."""
        if "for_each" in block.attributes:
            for key, value in self._expressions.value(block.attributes["for_each"], self._scope, block.file).items():
                yield key, {**self._scope, "each": {"key": key, "value": value}}
        elif "count" in block.attributes:
            for number in range(self._expressions.value(block.attributes["count"], self._scope, block.file)):
                yield str(number), {**self._scope, "count": {"index": number}}
        else:
            yield _ONLY, self._scope

    def _instance(self, block: Block, scope: Scope) -> LazyValues:
        def own(name: str) -> Any:
            return self._expressions.value(block.attributes[name], scope, block.file)

        def any_(name: str) -> Any:
            if name in block.attributes:
                return own(name)
            return self._computed(block.labels[0], LazyValues(block.attributes, own), name)

        return LazyValues(block.attributes, any_)

    def _evaluated(self, block: Block, scope: Scope) -> dict[str, Any]:
        """Return the attributes that are not null, and lists of the nested blocks."""
        content: dict[str, Any] = {}
        for name, expression in block.attributes.items():
            value = None if name in _META_ARGUMENTS else self._expressions.value(expression, scope, block.file)
            if value is not None:
                content[name] = value
        for nested in block.blocks:
            if nested.kind != "lifecycle":
                content.setdefault(nested.kind, []).append(self._evaluated(nested, scope))
        return content


def _content(body: Any, file: str) -> tuple[dict[str, Any], list[Block]]:
    """Return the attributes and the blocks in a body."""
    attributes: dict[str, Any] = {}
    blocks: list[Block] = []
    for item in trees_of(body):
        if item.data == "attribute":
            attributes[name_of(item.children[0])] = parts_of(item)[-1]
        else:
            kind, *labels, inside = trees_of(item)
            names = tuple("".join(label.scan_values(lambda part: part != '"')) for label in labels)
            own, nested = _content(inside, file)
            blocks.append(Block(kind=name_of(kind), labels=names, attributes=own, blocks=tuple(nested), file=file))
    return attributes, blocks
