""".ci/rerun_failed.py: which failed tests run a second time, and what the second run means."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "rerun_failed.py"
_spec = importlib.util.spec_from_file_location("rerun_failed", SCRIPT)
assert _spec is not None and _spec.loader is not None
rerun = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rerun)

INTEROP = [f"tests/interop/test_x.py::test_{number}" for number in range(4)]


def never(test: str) -> bool:
    raise AssertionError(f"ran {test}")


def test_failed_tests_that_pass_alone_are_flaky() -> None:
    ran: list[str] = []
    status, lines = rerun.judge(INTEROP[:3], lambda test: not ran.append(test))  # type: ignore[func-returns-value]
    assert (status, ran) == (0, INTEROP[:3])
    assert lines == [f"flaky: passed on the second run: {test}" for test in INTEROP[:3]]


def test_one_that_fails_again_fails_the_run() -> None:
    status, lines = rerun.judge(INTEROP[:2], lambda test: test == INTEROP[0])
    assert status == 1
    assert lines == [f"flaky: passed on the second run: {INTEROP[0]}", f"ci: failed twice: {INTEROP[1]}"]


def test_more_than_three_failures_fail_at_once() -> None:
    assert rerun.judge(INTEROP, never) == (1, ["ci: failed: not run again: 4 tests failed, more than 3"])


@pytest.mark.parametrize("directory", ["unit", "property", "simulation", "crash", "style"])
def test_deterministic_tests_fail_at_once(directory: str) -> None:
    test = f"tests/{directory}/test_x.py::test_y"
    status, (line,) = rerun.judge([INTEROP[0], test], never)
    assert status == 1 and test in line and INTEROP[0] not in line


def test_a_run_that_recorded_no_failure_fails(tmp_path: Path) -> None:
    assert rerun.read_failed(tmp_path) == []
    assert rerun.judge([], never)[0] == 1


def test_failures_are_read_from_the_cache_of_pytest(tmp_path: Path) -> None:
    path = tmp_path / "v" / "cache" / "lastfailed"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(dict.fromkeys(reversed(INTEROP), True)))
    assert rerun.read_failed(tmp_path) == INTEROP


def test_a_skipped_test_has_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerun, "ROOT", tmp_path)
    (tmp_path / "test_z.py").write_text(
        "import pytest\ndef test_passes(): pass\ndef test_fails(): assert 0\ndef test_skips(): pytest.skip('no')\n"
    )
    outcomes = [rerun.run_alone(f"test_z.py::test_{name}") for name in ("passes", "fails", "skips")]
    assert outcomes == [True, False, False]


def test_flaky_tests_are_listed_in_a_file_and_in_the_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerun, "ROOT", tmp_path)
    assert rerun.report_flaky([f"ci: failed twice: {INTEROP[0]}"]) == []
    assert not (tmp_path / rerun.FLAKY).exists()
    _, lines = rerun.judge(INTEROP[:2], lambda test: test == INTEROP[0])
    (last,) = rerun.report_flaky(lines)
    assert last.startswith("ci: 1 FLAKY TEST, listed in build/flaky-tests.txt")
    assert (tmp_path / rerun.FLAKY).read_text() == f"flaky: passed on the second run: {INTEROP[0]}\n"
