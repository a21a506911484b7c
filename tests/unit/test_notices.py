"""Notices: lines of a server that are printed although its log is written to a file."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from ariane.cli.servers.process.run_server import _StderrNotices
from ariane.cli.up import child_processes as supervisor
from ariane.cli.up.child_processes import ChildProcess, ChildProcesses
from ariane.net.interfaces import is_loopback


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)],
)
def test_only_loopback_addresses_are_unreachable_from_the_network(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


def record(text: str, *, notice: bool) -> logging.LogRecord:
    log_record = logging.LogRecord("ariane", logging.ERROR, "", 0, text, (), None)
    if notice:
        log_record.notice = True
    return log_record


def test_only_notices_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for supervised in (False, True):
        handler = _StderrNotices(supervised)
        handler.handle(record("other", notice=False))
        handler.handle(record("disk full:\nfree space", notice=True))
    printed = capsys.readouterr()
    assert printed.out == "notice disk full: free space\n"
    assert printed.err == "disk full: free space\n"


SCRIPT = """
import sys
print("notice open to the network", flush=True)
print("ready 127.0.0.1:1", flush=True)
print("notice no room", flush=True)
print("something else", flush=True)
sys.stdin.read()
"""


def test_notices_of_a_process_are_printed_before_and_after_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = asyncio.create_subprocess_exec

    async def script(*command: str, **options: object) -> Process:
        return await spawn(sys.executable, "-c", SCRIPT, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(supervisor.asyncio, "create_subprocess_exec", script)

    async def run() -> list[str]:
        output: list[str] = []
        heard = asyncio.Event()

        def say(line: str) -> None:
            output.append(line)
            if "no room" in line:
                heard.set()

        async with ChildProcesses(tmp_path, say) as programs:
            assert await programs.start(ChildProcess("broker", ())) == "127.0.0.1:1"
            await asyncio.wait_for(heard.wait(), 60)
        return output

    output = asyncio.run(run())
    assert [line for line in output if "pid" not in line] == ["broker    open to the network", "broker    no room"]
