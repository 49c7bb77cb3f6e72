"""TOML, written: the standard library only reads it. Enough for Bottlerocket's settings.

Tables come after plain values, keys sorted, so that equal settings give equal text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from typing import Any, Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def dumps(document: Mapping[str, Any]) -> str:
    """The document as TOML text.

    Raises:
        TypeError: A value of a type that TOML lacks, None among them.
    """
    return "\n".join(_table(document, ())).strip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (plain or not table):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key in sorted(plain):
        yield f"{_key(key)} = {_value(plain[key])}"
    for key in sorted(table.keys() - plain.keys()):
        yield from _table(table[key], (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    # a JSON string is a TOML basic string, but for DEL, which JSON leaves bare, and escaped surrogates, which TOML refuses
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):  # inside an array only
        return f"{{{', '.join(f'{_key(k)} = {_value(value[k])}' for k in sorted(value))}}}"
    raise TypeError(f"TOML has no {type(value).__name__}")
