"""JVMs that run Java programs one after another, for `JavaRelease.run`: a JVM for each would take many times the CPU time."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence

END = "\0"  # begins the line with the exit status


class ProgramRunner:
    """Runs programs in JVMs that `start` starts with the main class `ariane.peers.Serve`; each runs one program at a time.

    They exit with this process, at the end of their input.
    """

    def __init__(self, start: Callable[[], subprocess.Popen[str]]) -> None:
        self._start = start
        self._idle: list[subprocess.Popen[str]] = []

    def run(self, main: str, args: Sequence[str], timeout_s: float) -> tuple[list[str], int | None]:
        """Return the output of a program and its exit status; None if it was ended after `timeout_s`."""
        process = self._idle.pop() if self._idle else self._start()
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps({"main": main, "args": list(args)}) + "\n")
            process.stdin.flush()
            lines: list[str] = []
            for line in process.stdout:
                if line.startswith(END):
                    self._idle.append(process)
                    return lines, int(line.removeprefix(END))
                lines.append(line.rstrip("\n"))
        finally:
            timer.cancel()
            is_timed_out = timer.finished.is_set() and process.poll() is not None
        status = process.wait()  # the program has ended the JVM
        return lines, None if is_timed_out and status < 0 else status
