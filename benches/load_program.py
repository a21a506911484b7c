"""The native load program `ariane-load`: its build, its runs, and the figures in its JSON report.

It is built by `cargo build --release` in `native/` (CARGO_TARGET_DIR is honored) unless its path is given.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servers import HERE, Running

NATIVE = HERE.parent / "native"
RUSTUP_BIN = Path.home() / ".cargo" / "bin"

Report = dict[str, Any]


class LoadProgram:
    """Runs loads against one broker."""

    def __init__(self, path: Path, running: Running) -> None:
        self._path = path
        self._running = running

    def run(self, mode: str, *options: object, has_pid: bool = True) -> Report:
        """Run a load and return its report; end the bench if the load failed."""
        with self.started(mode, *options, has_pid=has_pid) as process:
            return finished(process, self._running.server)

    @contextlib.contextmanager
    def started(self, mode: str, *options: object, has_pid: bool = True) -> Iterator[subprocess.Popen[str]]:
        """Run a load until the end of the block, next to whatever the block does."""
        command = [str(self._path), mode, "--broker", self._running.addr, *map(str, options), "--json"]
        if has_pid:
            command += ["--pid", str(self._running.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.terminate()


def finished(process: subprocess.Popen[str], server: str) -> Report:
    """Wait for a load and return its report; end the bench if the load failed."""
    output, errors = process.communicate()
    if process.returncode:
        # The address is different in each run; the options say which load it was.
        options = " ".join(map(str, process.args[4:]))  # type: ignore[index]
        raise SystemExit(
            f"ariane-load {options}: exit status {process.returncode} at the {server} broker\n{output}{errors}"
        )
    return parse_report(output)


def parse_report(output: str) -> Report:
    """Return the report that the load program printed as its last line."""
    lines = output.strip().splitlines()
    try:
        report = json.loads(lines[-1]) if lines else None
    except ValueError:
        report = None
    if not isinstance(report, dict) or "latency_us" not in report:
        raise SystemExit(f"Invalid report of ariane-load: {output[-500:]!r}; expected one line of JSON.")
    return report


def load_figures(name: str, report: Report) -> dict[str, float]:
    """Return the figures of a load by name: rates, latencies in ms, CPU time per message in µs."""
    if not report["messages"]:
        raise SystemExit(f"{name}: no message in the measured time: {report}")
    figures = {f"{name} msg/s": report["rate"]}
    if "readable_rate" in report:
        figures[f"{name} readable/s"] = report["readable_rate"]
    figures[f"{name} p50 ms"] = report["latency_us"]["p50"] / 1000
    figures[f"{name} p99 ms"] = report["latency_us"]["p99"] / 1000
    if "broker_cpu_us" in report:
        figures[f"{name} cpu us"] = report["broker_cpu_us"]
    # CPU times count until the messages are readable.
    seconds = report.get("readable_seconds", report["seconds"])
    figures[f"{name} load program %"] = 100 * report["cpu_seconds"] / seconds
    return figures


def build(*features: str) -> Path:
    """Build the load program with these features, and return its path."""
    path = f"{os.environ.get('PATH', '')}{os.pathsep}{RUSTUP_BIN}"
    cargo = shutil.which("cargo", path=path)
    if cargo is None:
        raise SystemExit("cargo is not installed: see native/README.md, or pass the program with --load-program PATH")
    command = [cargo, "build", "--release", "--locked", "--package", "ariane-load", "--message-format", "json"]
    command += [f"--features={feature}" for feature in features]
    environment = {**os.environ, "PATH": path}
    built = subprocess.run(command, cwd=NATIVE, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode:
        raise SystemExit(f"cargo build of ariane-load: exit status {built.returncode}")
    artifacts = [json.loads(line) for line in built.stdout.splitlines()]
    return Path(next(a["executable"] for a in artifacts if a.get("executable")))
