"""docs/configuration.md: every key of broker.conf, namesrv.conf and proxy.conf, generated from the definitions.

`python tests/style/test_configuration_page.py` writes the page; the same file tests that page and code agree.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from ariane.settings.definitions import Setting, describe_range
from ariane.settings.schema import SettingsSchema

KIND_NAMES = {bool: "switch", int: "number", str: "text"}

_INTRODUCTION = """\
# Configuration

Every key of `broker.conf`, `namesrv.conf` and `proxy.conf`. This page is generated from the definitions in the code.

`ariane broker -c FILE` and `ariane namesrv -c FILE` read the files of RocketMQ 4.9.4 as they are, and `ariane proxy -c FILE` one of
Ariane's own; without a file, the defaults
below apply, which are those of 4.9.4 except `bindAddress` ([public addresses](operations.md#public-addresses)). `ariane broker -p`
prints the values in force. Each key of 4.9.4 (BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig,
NamesrvConfig) is in one of three groups:

1. **Settings** do what they do in 4.9.4.
2. **Keys without effect** are reported on stderr, one line per reason.
3. **Refused keys** stop the start unless they have Java's default: ignoring the value would change what is stored, or who can read
   or find it.

Any other key is reported as unknown, with the key that was probably meant. Keys marked *Ariane* or *RocketMQ 5.x* do not exist in
4.9.4; those marked *System property of 4.9.4* may be in the file, too, or in `-Dtls.server.mode=enforcing` of the command line
([TLS](tls.md)). *Runtime* says whether `mqadmin updateBrokerConfig` or `updateNamesrvConfig` may change a setting of a running
server, and within which bounds if these are narrower than those of the file."""


def configuration_page(schemas: Iterable[SettingsSchema[Any]]) -> str:
    """Return the whole page, with a chapter for each file."""
    return "\n\n".join([_INTRODUCTION, *map(_chapter, schemas)]) + "\n"


def descriptions(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstrings below the fields of a struct and of its base structs, by the name of the field."""
    texts = {}
    for struct in kind.__mro__[: kind.__mro__.index(msgspec.Struct)]:
        (definition,) = ast.parse(inspect.getsource(struct)).body
        assert isinstance(definition, ast.ClassDef)
        for field, following in pairwise(definition.body):
            match field, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def _chapter(schema: SettingsSchema[Any]) -> str:
    meanings = descriptions(schema.kind)
    groups: dict[str, list[Setting]] = {}
    for setting in schema.settings.values():
        groups.setdefault(setting.group, []).append(setting)
    parts = [f"## {schema.file_name}"]
    for heading, settings in groups.items():
        rows = [
            _setting_cells(setting, meanings[setting.name], is_changeable=setting.key in schema.changeable)
            for setting in settings
        ]
        parts += [f"### {heading} ({schema.file_name})", _table(SETTING_COLUMNS, rows)]
    parts += [f"### Refused keys ({schema.file_name})", _table(("key", "refused", "reason and fix"), _refused(schema))]
    parts += [f"### Keys without effect ({schema.file_name})", _table(("keys", "reason"), _without_effect(schema))]
    return "\n\n".join(parts)


SETTING_COLUMNS = ("key", "type", "default", "constraint", "runtime", "meaning")


def _setting_cells(setting: Setting, meaning: str, *, is_changeable: bool) -> tuple[str, ...]:
    kind = KIND_NAMES[setting.kind] + (f", {setting.unit}" if setting.unit else "")
    return (
        f"`{setting.key}`",
        kind,
        _default(setting),
        _grouped(setting.constraint, setting),
        _runtime(setting) if is_changeable else "no",
        meaning + (f" *{setting.origin}*" if setting.origin else ""),
    )


def _default(setting: Setting) -> str:
    """Return the default as the page shows it: a value as code, a description as it is."""
    text = setting.default_text
    if setting.kind is int:
        return _number(int(text), setting)
    if not text:
        return "empty"
    return text if setting.is_default_described else f"`{text}`"


def _runtime(setting: Setting) -> str:
    # Shown only where they are narrower than those of the file.
    bounds = setting.changeable
    assert bounds is not None
    if setting.kind is not int or (bounds.ge, bounds.le) == (setting.lowest, setting.highest):
        return "yes"
    return _grouped(describe_range(bounds.ge, bounds.le), setting)


def _grouped(constraint: str, setting: Setting) -> str:
    """Return a constraint with separators of thousands."""
    return " ".join(_number(int(word), setting) if word.isdecimal() else word for word in constraint.split(" "))


def _number(value: int, setting: Setting) -> str:
    # Ports have no unit, and are not written as 10,911.
    return f"{value:,}" if setting.unit or value >= 100_000 else str(value)


def _refused(schema: SettingsSchema[Any]) -> list[tuple[str, ...]]:
    return [
        (
            f"`{key}`",
            "`true`" if entry.java_default == "false" else "any value",
            entry.fix + (f". Without effect if `{entry.unless_set}` is set" if entry.unless_set else ""),
        )
        for key, entry in schema.unsupported.items()
    ]


def _without_effect(schema: SettingsSchema[Any]) -> list[tuple[str, ...]]:
    keys_by_reason: dict[str, list[str]] = {}
    for key, reason in schema.without_effect.items():
        keys_by_reason.setdefault(reason, []).append(f"`{key}`")
    return [(", ".join(keys), reason) for reason, keys in keys_by_reason.items()]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(columns), _row(["---"] * len(columns)), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
