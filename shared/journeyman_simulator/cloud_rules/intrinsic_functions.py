"""Evaluates the intrinsic functions of templates, which CloudFormation of AWS and ROS of Alibaba Cloud have in common.

It supports only those that our templates use; for any other it raises an error that names the function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from journeyman.errors import ConfigurationError

NO_VALUE: Final = object()
"""What a reference to the pseudo parameter NoValue evaluates to; a list or mapping does not get it."""

_SUBSTITUTION: Final = re.compile(r"\$\{([A-Za-z0-9:.]+)\}")


class IntrinsicFunctions:
    """The functions of one template.

    Args:
        conditions: The template's conditions by name.
        reference: Returns the value of a parameter, pseudo parameter or resource (`Ref`).
        attribute: Returns the value of `Resource.Attribute` (`Fn::GetAtt`).
    """

    def __init__(
        self, conditions: Mapping[str, Any], reference: Callable[[str], Any], attribute: Callable[[str], Any]
    ) -> None:
        self._conditions = conditions
        self._reference = reference
        self._attribute = attribute

    def holds(self, condition: str) -> bool:
        """Whether the condition with that name is true."""
        return bool(self.value(self._conditions[condition]))

    def value(self, value: Any) -> Any:
        """Return the value with its intrinsic functions evaluated.

        Raises:
            ConfigurationError: The template uses a function that is not supported here.
        """
        if isinstance(value, list):
            return [one for item in value if (one := self.value(item)) is not NO_VALUE]
        if not isinstance(value, Mapping):
            return value
        if len(value) == 1:
            ((key, argument),) = value.items()
            if key == "Ref":
                return self._reference(argument)
            if key.startswith("Fn::"):
                return self._function(key, argument)
        return {key: one for key, item in value.items() if (one := self.value(item)) is not NO_VALUE}

    def _function(self, key: str, argument: Any) -> Any:
        if key == "Fn::GetAtt":
            return self._attribute(argument if isinstance(argument, str) else ".".join(argument))
        if key == "Fn::Sub":
            return _SUBSTITUTION.sub(lambda match: str(self._substituted(match[1])), argument)
        if key == "Fn::Equals":
            first, second = (self.value(item) for item in argument)
            return first == second
        if key == "Fn::Not":
            return not self.value(argument[0] if isinstance(argument, list) else argument)
        if key == "Fn::Join":
            separator, items = argument
            return separator.join(map(str, self.value(items)))
        if key == "Fn::Split":
            separator, text = argument
            return str(self.value(text)).split(separator)
        if key == "Fn::If":
            condition, if_so, otherwise = argument
            return self.value(if_so if self.holds(condition) else otherwise)
        raise ConfigurationError(
            f"the template uses {key}, which the simulation does not support", to_do="add it to IntrinsicFunctions"
        )

    def _substituted(self, name: str) -> Any:
        return self._attribute(name) if "." in name else self._reference(name)
