"""docs/client.md and the README: every example runs and prints what it should."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ariane.testing import LocalCluster

ROOT = Path(__file__).resolve().parents[2]


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


BLOCKS = examples(ROOT / "docs" / "client.md")
README_PROGRAM, README_TEST = examples(ROOT / "README.md")
PROGRAMS = {"guide": BLOCKS[0], "README": README_PROGRAM}

# The last line that an example prints, by a piece of its code.
LAST_LINES = {
    "await consumer.commit()": r"[1-9]\d*",
    "blocking.Producer(": "True",
    "print(len(totals))": "50",
    "print(last.body)": re.escape("b'created'"),
    "message.payload.cents": "1250",
    "print([message.is_pending": "0",
    "print(steps)": re.escape("[b'created', b'paid', b'shipped']"),
    "producer.transaction(": "COMMIT",
    "print(attempts)": re.escape("[0, 1]"),
    "print(booked": re.escape("['ORDER-19'] 1"),
    "print(reply.body)": re.escape("b'PING'"),
    "print(producer.trace_counts.sent": "1 0",
    "print(result.queue.topic)": "orders",
    "in producer.clock_offsets": r"127\.0\.0\.1:\d+: -?\d+ ms ± \d+ ms",
}


def test_the_page_contains_examples():
    assert len(BLOCKS) >= 14
    for piece in LAST_LINES:
        assert sum(piece in block for block in BLOCKS) == 1, piece


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_first_example_runs_as_a_program(page: str, ariane_cluster: LocalCluster, tmp_path: Path):
    program = tmp_path / "hello.py"
    program.write_text(with_namesrv(PROGRAMS[page], ariane_cluster))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "orders ('ORDER-17',) created\n"), done.stderr
    # A consumer that starts before the name server has the route of the new topic says so once; anything else is a fault.
    assert [line for line in done.stderr.splitlines() if "cannot read topic orders yet" not in line] == []


def test_the_test_of_the_readme_passes(tmp_path: Path):
    (tmp_path / "test_reminder.py").write_text(README_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_other_examples_run_in_order(ariane_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # for the files of the examples

    async def run_all() -> None:
        names: dict[str, Any] = {"__name__": "__main__"}
        for block in BLOCKS[1:]:
            printed = io.StringIO()
            try:
                async with asyncio.timeout(60):
                    await run(with_namesrv(block, ariane_cluster), names, printed)
            except Exception as error:
                error.add_note(f"in the example\n{block}")
                raise
            for piece, expected in LAST_LINES.items():
                if piece in block:
                    assert re.fullmatch(expected, printed.getvalue().splitlines()[-1]), (printed.getvalue(), block)

    asyncio.run(run_all())


def with_namesrv(block: str, servers: LocalCluster) -> str:
    return block.replace("127.0.0.1:9876", servers.namesrv)


async def run(block: str, names: dict[str, Any], printed: io.StringIO) -> None:
    """Run code with `await` outside of functions, as `python -m asyncio` does."""
    with contextlib.redirect_stdout(printed):
        result = eval(compile(block, "<example>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.iscoroutine(result):
            await result
