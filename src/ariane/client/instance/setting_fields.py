"""Fields of settings: each states its default and its range, and checks what it is set to.

    class ProducerSettings:
        send_timeout: Seconds = Seconds(3.0, 0.001, 600)      # set to a float or a timedelta, read as a float of seconds
        retries: Whole = Whole(2, 0, 100)
        tls_ca_file: FilePath = FilePath()                      # set to a str or a Path, read as a str; "": none

They are descriptors of a dataclass, which type checkers know: a constructor accepts what `__set__` accepts.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Generic, TypeVar

from ariane.client.instance import validation
from ariane.errors import ConfigError

Stored = TypeVar("Stored", float, int)


class _Ranged(Generic[Stored]):
    """A number with a default and a range."""

    def __init__(self, default: Stored, low: Stored, high: Stored) -> None:
        self.default: Stored = default
        self.low: Stored = low
        self.high: Stored = high
        self.name = ""  # of the field

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, settings: object | None, owner: type) -> Stored:
        # Read from the class it is the default, as dataclasses expect.
        if settings is None:
            return self.default
        return settings.__dict__[self.name]  # type: ignore[no-any-return]


class Seconds(_Ranged[float]):
    """A duration: a number of seconds or a `timedelta`, read as seconds."""

    def __set__(self, settings: object, value: float | timedelta) -> None:
        settings.__dict__[self.name] = validation.seconds(self.name, value, self.low, self.high)


class Whole(_Ranged[int]):
    """A whole number."""

    def __set__(self, settings: object, value: int) -> None:
        settings.__dict__[self.name] = validation.whole(self.name, value, self.low, self.high)


class FilePath:
    """A path: a text or a `Path`, read as a text; empty: no path."""

    def __init__(self) -> None:
        self.name = ""  # of the field

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, settings: object | None, owner: type) -> str:
        return "" if settings is None else settings.__dict__[self.name]

    def __set__(self, settings: object, value: str | os.PathLike[str]) -> None:
        try:
            path = os.fspath(value)
        except TypeError:
            path = None
        if not isinstance(path, str):
            raise ConfigError(self.name, value, "expected a path: str or pathlib.Path")
        settings.__dict__[self.name] = path
