"""Which implementation of the kernels a process uses, and what happens if the native one is missing, does not fit, or fails."""

from __future__ import annotations

import logging
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ariane.errors import ConfigError
from ariane.kernels import implementation, native
from ariane.kernels.pulls.pull_answers import PullSource
from ariane.kernels.pulls.pull_reader import PythonPullReader
from ariane.kernels.pulls.pull_selection import PullLimits
from ariane.kernels.record_runs import LogPlace
from ariane.kernels.sends.send_encoder import FRAMES_MAX, PythonSendEncoder
from ariane.kernels.sends.send_turn import LogEnd, SendSettings
from ariane.protocol.records import record
from ariane.protocol.records.queue_entry import ENTRY

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = SendSettings(
    store_host=bytes(8), cluster="C", region="R", trace_on=True, header_max=1000, body_max=1000, is_indexed=True,
    exceptional=frozenset(),
)  # fmt: skip


class PanickingEncoder:
    """Native code with a bug."""

    frames_max = 512

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def encode(self, *arguments: Any) -> Any:
        raise RuntimeError("ariane_native failed: index out of bounds")


def module(**members: Any) -> Any:
    return SimpleNamespace(INTERFACE_VERSION=native.INTERFACE_VERSION, VERSION="1.2.3", **members)


def installed(monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
    """Make `import ariane_native` return `result`, or raise it."""

    def import_module(name: str) -> Any:
        assert name == "ariane_native"
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(native, "importlib", SimpleNamespace(import_module=import_module))


def test_an_invalid_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="ARIANE_IMPL = 'fast': expected one of auto, native, python"):
        implementation.select("fast")


def test_python_is_chosen_although_native_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, module())
    chosen = implementation.select("python")
    assert chosen.description == "python"
    assert isinstance(chosen.send_encoder(SETTINGS), PythonSendEncoder)


@pytest.mark.parametrize("choice", ["auto", "native"])
def test_native_is_chosen_if_it_is_installed(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, module())
    assert implementation.select(choice).description == "native 1.2.3"


def test_without_the_package_auto_means_python(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed(monkeypatch, ModuleNotFoundError("No module named 'ariane_native'"))
    assert implementation.select("auto").description == "python"
    assert not caplog.records
    with pytest.raises(ConfigError, match=re.escape("pip install ariane[native]")):
        implementation.select("native")


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (
            SimpleNamespace(INTERFACE_VERSION=0, VERSION="0.0.1"),
            f"ariane_native 0.0.1 has interface 0, expected {native.INTERFACE_VERSION}",
        ),
        (
            SimpleNamespace(),
            f"ariane_native of an unknown version has interface None, expected {native.INTERFACE_VERSION}",
        ),
        (ImportError("GLIBC_2.99 not found"), "the package ariane_native cannot be loaded (GLIBC_2.99 not found)"),
    ],
)
def test_a_package_that_does_not_fit_is_reported(
    result: Any, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed(monkeypatch, result)
    assert implementation.select("auto").description == "python"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert reason in record.getMessage()
    with pytest.raises(ConfigError, match=re.escape(reason)):
        implementation.select("native")


@pytest.mark.parametrize(("value", "description"), [("python", "python"), ("", "native 1.2.3")])
def test_the_environment_selects(value: str, description: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, module())
    monkeypatch.setenv("ARIANE_IMPL", value)
    assert implementation.selected.__wrapped__().description == description


def test_python_continues_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    core = native.NativeCore(module(SendEncoder=PanickingEncoder))
    encoder, other = core.send_encoder(SETTINGS), core.send_encoder(SETTINGS)
    assert encoder.frames_max == 512
    for _ in range(2):
        assert encoder.encode(b"", 0, bytes(8), LogEnd(0, 100, 0), lambda topic, queue_id: 0).sends == 0
    assert encoder.frames_max == FRAMES_MAX
    assert other.encode(b"", 0, bytes(8), LogEnd(0, 100, 0), lambda topic, queue_id: 0).sends == 0
    (record,) = caplog.records
    assert "index out of bounds" in record.getMessage()
    assert core.description == "python (native failed: ariane_native failed: index out of bounds)"
    assert isinstance(core.send_encoder(SETTINGS), PythonSendEncoder)


def test_the_pulls_of_a_turn_are_answered_after_a_failure() -> None:
    calls: list[str] = []

    def fail(*arguments: Any) -> Any:
        calls.append("answer_pulls")
        raise RuntimeError("ariane_native failed")

    core = native.NativeCore(module(answer_pulls=fail))
    query = (ENTRY.pack(0, 100, 0), 32, None, 0, 0, 1, (0, 0), 1)
    for _ in range(2):
        source = PullSource(0, 1000, 10, 0, 1, 1, 1, 1, 1)  # the record is removed
        assert core.answer_pulls([query], None, source) == (b"", [])  # type: ignore[arg-type]
    assert calls == ["answer_pulls"]
    assert isinstance(core.pull_reader(), PythonPullReader)


def test_a_failure_of_one_part_ends_the_use_of_all() -> None:
    calls: list[str] = []

    def fail(*arguments: Any) -> Any:
        calls.append("select_messages")
        raise RuntimeError("ariane_native failed")

    core = native.NativeCore(module(SendEncoder=PanickingEncoder, select_messages=fail))
    encoder = core.send_encoder(SETTINGS)
    encoder._encode = lambda *arguments: calls.append("encode")  # type: ignore[attr-defined]
    limits = PullLimits(log_start=10, recent_from=0, count_max=1, bytes_max=1, disk_count_max=1, disk_bytes_max=1)
    for _ in range(2):
        selected = core.select_messages(ENTRY.pack(0, 100, 0), None, 0, 1000, None, limits)  # type: ignore[arg-type]
        assert selected is not None
        assert selected.is_removed
        assert encoder.encode(b"", 0, bytes(8), LogEnd(0, 100, 0), lambda topic, queue_id: 0).sends == 0
    assert calls == ["select_messages"]
    assert encoder.frames_max == FRAMES_MAX


def test_python_scans_the_records_after_a_failure() -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("ariane_native failed: index out of bounds")

    core = native.NativeCore(module(scan_records=fail))
    stored = record.encode(
        b"T",
        b"body",
        b"",
        queue_id=0,
        queue_offset=0,
        offset=0,
        born_ms=1,
        store_ms=5,
        born_host=bytes(8),
        store_host=bytes(8),
    )
    for _ in range(2):
        run = core.scan_records(stored, 0, LogPlace(0, 1000, 1000), check_crc=True, hash_keys=True)
        assert run is not None
        assert (run.size, run.records) == (len(stored), 1)
    assert core.description == "python (native failed: ariane_native failed: index out of bounds)"


def test_the_versions_of_both_distributions_are_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cargo = tomllib.loads((ROOT / "native" / "Cargo.toml").read_text())
    version = cargo["workspace"]["package"]["version"]
    assert project["version"] == version
    assert project["optional-dependencies"]["native"] == [f"ariane-native=={version}"]


def test_the_script_checks_for_the_rust_that_the_core_needs() -> None:
    cargo = tomllib.loads((ROOT / "native" / "core" / "Cargo.toml").read_text())
    minor = cargo["package"]["rust-version"].removeprefix("1.")
    assert f"\nrust_needed={minor} " in (ROOT / "ariane").read_text()
