"""Settings, defined by the fields of msgspec structs.

    slave_timeout: Annotated[Milliseconds, Meta(ge=0, le=3_600_000)] = 3_000

From this field follow the key `slaveTimeout`, its type, default, unit and constraint, the check of its value, and, with the
docstring below it, its row in docs/configuration.md. The markers of this module hold what msgspec has no word for.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ariane.errors import ConfigError

T = TypeVar("T")

# --- markers ---


class Unit(msgspec.Struct, frozen=True):
    """The unit of a number, as the reference page prints it."""

    name: str


class Origin(msgspec.Struct, frozen=True):
    """Where a key comes from if RocketMQ 4.9.4 does not have it."""

    name: str


class DefaultText(msgspec.Struct, frozen=True):
    """The default of a setting that depends on the machine or its environment, in words."""

    text: str


class Concealed(msgspec.Struct, frozen=True):
    """The value is never printed or returned by a request."""


class Changeable(msgspec.Struct, frozen=True):
    """A request may change the setting while the server runs.

    These bounds are narrower than those of the file: an operator may choose an extreme value at the start, but a remote request
    must not break a running server.
    """

    ge: int | None = None
    le: int | None = None
    length_max: int = 255
    """Characters of a text."""


Milliseconds = Annotated[int, Unit("ms")]
Seconds = Annotated[int, Unit("s")]
Hours = Annotated[int, Unit("h")]
Bytes = Annotated[int, Unit("bytes")]
Percent = Annotated[int, Unit("%")]

ARIANE_ONLY = Origin("Ariane")
ROCKETMQ_5 = Origin("RocketMQ 5.x")
SYSTEM_PROPERTY = Origin("System property of 4.9.4")


# --- one setting ---


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a configuration file."""

    name: str
    """Name of the struct's field."""
    key: str
    """Java's name, which the file uses."""
    kind: type
    """bool, int or str."""
    default_text: str
    """The default as a file writes it, or in words if it depends on the machine."""
    is_default_described: bool = False
    """Whether `default_text` is a description and not a value."""
    group: str
    """Heading under which the reference page lists the setting."""
    unit: str = ""
    """Unit of a number; empty for counts, texts and switches."""
    origin: str = ""
    """Where the key comes from; empty: RocketMQ 4.9.4."""
    lowest: int | None = None
    """Smallest value; None: unbounded."""
    highest: int | None = None
    """Largest value; None: unbounded."""
    choices: tuple[str, ...] = ()
    """The only values; empty: any."""
    is_secret: bool = False
    """Whether the value must not be shown."""
    changeable: Changeable | None = None
    """Bounds for changes of a running server; None: a change needs a restart."""

    @property
    def constraint(self) -> str:
        """What the file may say, in words; empty if any value will do."""
        return " or ".join(self.choices) if self.choices else describe_range(self.lowest, self.highest)

    def read(self, text: str) -> bool | int | str:
        """Return the value of a text, unchecked. Only `true`, in any case, is true, as in Java.

        Raises:
            ConfigError: the setting is a number and the text is not.
        """
        text = text.strip()
        if self.kind is bool:
            return text.lower() == "true"
        if self.kind is int:
            try:
                return int(text)
            except ValueError:
                raise ConfigError(self.key, text, "expected a whole number") from None
        return text

    def check(self, value: Any) -> None:
        """Raise ConfigError if a value of the file violates the constraint."""
        if self.choices and value not in self.choices:
            raise ConfigError(self.key, value, f"expected {self.constraint}")
        if self.kind is int and not is_within(value, self.lowest, self.highest):
            raise ConfigError(self.key, value, f"expected {self.constraint}")

    def check_change(self, text: str) -> None:
        """Raise ConfigError if a running server cannot take this text for the setting."""
        bounds = self.changeable
        assert bounds is not None
        if self.kind is bool:
            # Stricter than a file: `ture` would silently mean false.
            if text not in ("true", "false"):
                raise ConfigError(self.key, text, "expected true or false")
        elif self.kind is int:
            if not is_within(self.read(text), bounds.ge, bounds.le):
                raise ConfigError(self.key, text, f"expected {describe_range(bounds.ge, bounds.le)}")
        elif not text or len(text) > bounds.length_max or not text.isprintable():
            # A line feed in a value would add a line, and so another key, to the file.
            raise ConfigError(self.key, text, f"expected 1 to {bounds.length_max} printable characters")


def is_within(value: Any, lowest: int | None, highest: int | None) -> bool:
    """Return whether a number is within bounds; None means unbounded."""
    return (lowest is None or value >= lowest) and (highest is None or value <= highest)


def describe_range(lowest: int | None, highest: int | None) -> str:
    """Return bounds in words, empty if there are none."""
    if lowest is None:
        return "" if highest is None else f"at most {highest}"
    return f"at least {lowest}" if highest is None else f"{lowest} to {highest}"


# --- the settings of a struct ---


@functools.cache
def settings_of(kind: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """Return the settings that the fields of a struct and of its base structs define, base structs first."""
    hints = get_type_hints(kind, include_extras=True)
    groups = _groups(kind)
    return tuple(_setting(field, hints[field.name], groups[field.name]) for field in msgspec.structs.fields(kind))


def to_text(value: object) -> str:
    """Return a value as a configuration file writes it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _groups(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the group of each field: the first line of the docstring of the struct that defines it."""
    groups: dict[str, str] = {}
    # Base structs first: a field belongs to the struct that introduces it, not to those that inherit it.
    for struct in reversed(kind.__mro__):
        if struct is msgspec.Struct or not issubclass(struct, msgspec.Struct):
            continue
        heading = (struct.__doc__ or "").partition("\n")[0].rstrip(".")
        for name in struct.__struct_fields__:
            groups.setdefault(name, heading)
    return groups


def _setting(field: msgspec.structs.FieldInfo, hint: Any, group: str) -> Setting:
    # `Annotated[Milliseconds, …]` is flattened by Python: the unit is one of the markers.
    annotated, *markers = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    choices = get_args(annotated) if get_origin(annotated) is Literal else ()
    metas = [marker for marker in markers if isinstance(marker, msgspec.Meta)]
    default_text = _marker(markers, DefaultText)
    unit, origin = _marker(markers, Unit), _marker(markers, Origin)
    return Setting(
        name=field.name,
        key=field.encode_name,
        # A Literal's values are texts.
        kind=str if choices else annotated,
        default_text=default_text.text if default_text is not None else to_text(field.default),
        is_default_described=default_text is not None,
        group=group,
        unit=unit.name if unit is not None else "",
        origin=origin.name if origin is not None else "",
        lowest=_bound([meta.ge for meta in metas]),
        highest=_bound([meta.le for meta in metas]),
        choices=choices,
        is_secret=_marker(markers, Concealed) is not None,
        changeable=_marker(markers, Changeable),
    )


def _marker(markers: Sequence[Any], kind: type[T]) -> T | None:
    return next((marker for marker in markers if isinstance(marker, kind)), None)


def _bound(values: Sequence[int | float | None]) -> int | None:
    return next((int(value) for value in values if value is not None), None)
