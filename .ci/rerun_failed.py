"""Run failed tests of real programs once more, alone, and report those that pass as flaky.

    .venv/bin/python .ci/rerun_failed.py CACHE      pytest's cache directory of the run that failed

Tests in DETERMINISTIC control time, disk and network: a failure there is a defect and fails at once. All other tests start servers,
JVMs and Spark on a machine that others may load. As many as MAX_RERUN of these are run again, one after another on a machine that
is quiet by then. A test that passes then is flaky, which is a defect as well (CONTRIBUTING.md), but not one of this change: it does
not fail the run, but the last lines name it, and so does the file FLAKY.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAST_FAILED = Path("v", "cache", "lastfailed")
FLAKY = Path("build", "flaky-tests.txt")  # of the last run; `.ci/run` removes that of the run before
DETERMINISTIC = ("tests/unit/", "tests/property/", "tests/simulation/", "tests/crash/", "tests/style/")
MAX_RERUN = 3
TEST_TIMEOUT_S = 900


def read_failed(cache: Path) -> list[str]:
    """Return the ids of the tests that failed in the run with this cache directory."""
    path = cache / LAST_FAILED
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


def fault(failed: Sequence[str]) -> str | None:
    """Return why these failures are final; None if the tests may run again."""
    if not failed:
        return "the run failed, but recorded no failed test"
    if deterministic := [test for test in failed if test.startswith(DETERMINISTIC)]:
        return f"not run again, because nothing but the code decides: {', '.join(deterministic)}"
    if len(failed) > MAX_RERUN:
        return f"not run again: {len(failed)} tests failed, more than {MAX_RERUN}"
    return None


def judge(failed: Sequence[str], run_alone: Callable[[str], bool]) -> tuple[int, list[str]]:
    """Return the exit status and the last lines of the run. `run_alone` returns whether a test passes."""
    if reason := fault(failed):
        return 1, [f"ci: failed: {reason}"]
    passed = {test: run_alone(test) for test in failed}
    lines = [
        f"flaky: passed on the second run: {test}" if is_passed else f"ci: failed twice: {test}"
        for test, is_passed in passed.items()
    ]
    return (0 if all(passed.values()) else 1), lines


def run_alone(test: str) -> bool:
    """Run one test in a process of its own. One that is skipped has not passed."""
    print(f"\nci: running again, alone: {test}", flush=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rA",
        "-p",
        "no:cacheprovider",
        f"--timeout={TEST_TIMEOUT_S}",
        test,
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)  # noqa: S603
    print(done.stdout, flush=True)
    return done.returncode == 0 and f"PASSED {test}" in done.stdout.splitlines()


def report_flaky(lines: Sequence[str]) -> list[str]:
    """Write the lines about flaky tests into the file, and return the last line of the run; none without flaky tests."""
    flaky = [line for line in lines if line.startswith("flaky: ")]
    if not flaky:
        return []
    path = ROOT / FLAKY
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in flaky), encoding="utf-8")
    count = "1 FLAKY TEST" if len(flaky) == 1 else f"{len(flaky)} FLAKY TESTS"
    return [f"ci: {count}, listed in {FLAKY}: a test that passes only on its second run is a defect"]


def main(cache: Path) -> int:
    status, lines = judge(read_failed(cache), run_alone)
    for line in (*lines, *report_flaky(lines)):
        print(line, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
