"""Reads a description of Serverless Devs (s.yaml) and evaluates its variables: `vars`, `env`, `json`, `config`, `resources`.

    ${vars.region}   ${env('LOG_LEVEL', 'info')}   ${json(env('ENABLED', 'false'))}   ${resources.cloud.output.SweepRole}

A text that is nothing but a variable has the variable's type. Any other variable raises an error that names it.

Restates: Serverless Devs user guide, "Yaml specification", edition 3.0.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from journeyman.errors import ConfigurationError

_VARIABLE: Final = re.compile(r"\$\{([^}]+)\}")
_ENV: Final = re.compile(r"env\('(\w+)'(?:,\s*'(.*)')?\)")
_JSON: Final = re.compile(r"json\((.+)\)")
_CONFIG: Final = re.compile(r"config\('(\w+)'\)")
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is faster, but not in every build


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file, with its anchors and merge keys resolved."""
    content: dict[str, Any] = yaml.load(path.read_text(), Loader=_SafeLoader)  # noqa: S506 - a SafeLoader
    return content


class DescriptionVariables:
    """The variables of one description.

    Args:
        description: The content of s.yaml.
        environment: The environment of the deployment.
        config: The access's configuration, such as its AccountID.
        outputs: Returns the outputs of a resource, which must be deployed by then.
    """

    def __init__(
        self,
        description: Mapping[str, Any],
        environment: Mapping[str, str],
        config: Mapping[str, str],
        outputs: Callable[[str], Mapping[str, Any]],
    ) -> None:
        self._vars: Mapping[str, Any] = description.get("vars", {})
        self._environment = environment
        self._config = config
        self._outputs = outputs

    def value(self, value: Any) -> Any:
        """Return the value with its variables replaced. Raises ConfigurationError if one has no value."""
        if isinstance(value, Mapping):
            return {key: self.value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, str):
            return value
        whole = _VARIABLE.fullmatch(value)
        return self._variable(whole[1]) if whole else _VARIABLE.sub(lambda m: str(self._variable(m[1])), value)

    def _variable(self, text: str) -> Any:
        kind, _, rest = text.partition(".")
        if kind == "vars" and rest in self._vars:
            return self.value(self._vars[rest])
        if kind == "resources":
            name, _, key = rest.partition(".output.")
            return self._outputs(name)[key]
        if found := _ENV.fullmatch(text):
            default = found[2]
            given = self._environment.get(found[1], default)
            if given is None:
                raise ConfigurationError(
                    f"{found[1]} is not set", variable=found[1], to_do="set it, or write it into .env"
                )
            return given
        if found := _JSON.fullmatch(text):
            return json.loads(self._variable(found[1]))
        if found := _CONFIG.fullmatch(text):
            return self._config[found[1]]
        raise ConfigurationError(
            f"s.yaml uses the variable {text}, which the simulation does not know",
            to_do="add it to DescriptionVariables",
        )
