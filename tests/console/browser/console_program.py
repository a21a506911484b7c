"""Programs that the browser tests run: the cluster with its traffic (`traffic.py`) and the console, each in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

TRAFFIC = Path(__file__).with_name("traffic.py")
START_S = 180.0
STOP_S = 30.0
READY = "ready "


class Program:
    """A process with a line on standard output when it is ready. It stops when its standard input closes."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Start the process; return its first line.

        Raises:
            AssertionError: it ended or was silent for too long; contains its log.
        """
        environment = {**os.environ, "NO_PROXY": "*"}
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *self._arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
            )  # fmt: skip
        lines: list[str] = []
        assert self._process.stdout is not None
        reader = threading.Thread(
            target=lambda out: lines.append(out.readline()), args=(self._process.stdout,), daemon=True
        )
        reader.start()
        reader.join(START_S)
        assert lines and lines[0], f"{self._arguments}: no line within {START_S} s:\n{self._log.read_text()[-4000:]}"
        return lines[0].strip()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop the process, if it runs."""
        if self._process is None or self._process.poll() is not None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class TrafficProgram(Program):
    """The cluster. `info` has its addresses and the ids of messages."""

    def __init__(self, home: Path, *, with_java: bool) -> None:
        super().__init__([str(TRAFFIC), str(home), *(["--java"] if with_java else [])], home / "traffic.log")
        self.info: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.info = json.loads(self.start())
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


class ConsoleProgram(Program):
    """A console. `url` is its address, the same after a restart."""

    def __init__(self, namesrv: str, home: Path, *options: str, tables: Path | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._options = [
            "-m", "ariane.cli", "console", "-n", namesrv, "--data", str(home / "data"), "--home", str(tables or home / "tables"),
            "--until-stdin-closes", *options,
        ]  # fmt: skip
        super().__init__([*self._options, "--port", "0"], home / "console.log")
        self.data = home / "data"
        self.url = ""

    def __enter__(self) -> Self:
        self.url = self.start().removeprefix(READY)
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
