"""A native decoder of records that fails is replaced by the Python one."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from ariane.kernels.native import INTERFACE_VERSION, NativeCore


class PanickingDecoder:
    """Native code with a bug."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns

    def decode(self, *arguments: Any) -> Any:
        raise RuntimeError("ariane_native failed: index out of bounds")


def core(**members: Any) -> NativeCore:
    return NativeCore(SimpleNamespace(INTERFACE_VERSION=INTERFACE_VERSION, VERSION="1.2.3", **members))


def test_a_failure_switches_to_python_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    native = core(ColumnDecoder=PanickingDecoder, find_all=lambda data: bytes(8))
    records = native.native_records
    assert records is not None
    assert records.find_all(b"") == bytes(8)
    with caplog.at_level(logging.ERROR):
        assert records.decode(b"", b"", ("topic",), checks_bodies=True) is None
    assert "continuing with the Python implementation: ariane_native failed: index out of bounds" in caplog.text
    assert native.native_records is None
    assert native.description.startswith("python")


def test_a_limit_below_zero_leaves_no_room() -> None:
    limits = []

    def find_chain(data: bytes, offset: int, limit: int) -> tuple[bytes, int, bool]:
        limits.append(limit)
        return b"", 0, False

    records = core(ColumnDecoder=PanickingDecoder, find_chain=find_chain).native_records
    assert records is not None
    assert records.find_chain(b"", 0, -8) == (b"", 0, False)
    assert limits == [0]
