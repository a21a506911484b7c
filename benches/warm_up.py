"""The warm-up of a broker: pipelined sends until its rate, and of Java its compiler, has settled.

A Java broker interprets its code at first and compiles it while it runs, so its rate grows for tens of seconds. The warm-up sends
in windows and ends when two windows in a row have about the same rate and the threads of the compiler do little; or at the latest
after a limit. Ours is warmed up the same way. Each load has an unmeasured round of its own afterwards.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from load_program import LoadProgram
from servers import Running, thread_cpu_s

WINDOWS_MIN = 3
RATE_CHANGE = 0.05  # largest change of the rate between two windows
COMPILER_SHARE = 0.1  # of one core
COMPILER_THREADS = ("C1 CompilerThre", "C2 CompilerThre")  # the kernel cuts names after 15 characters


class Window(NamedTuple):
    rate: float  # messages per second
    compiler: float  # CPU time of the compiler's threads, share of one core


def warm_up(running: Running, program: LoadProgram, window_s: float, limit_s: float) -> list[Window]:
    """Send until the broker has settled, at the latest for `limit_s`."""
    windows: list[Window] = []
    while not is_settled(windows) and len(windows) * window_s < limit_s:
        compiler_s, began = compiler_cpu_s(running.pid), time.perf_counter()
        options = ("--topic", "WarmUp", "--create-topic", "--duration", window_s)
        report = program.run("send", *options)
        seconds = time.perf_counter() - began
        windows.append(Window(report["rate"], (compiler_cpu_s(running.pid) - compiler_s) / seconds))
    return windows


def is_settled(windows: list[Window]) -> bool:
    """Return whether the last two windows differ by less than 5 % and the compiler takes less than a tenth of a core."""
    if len(windows) < WINDOWS_MIN:
        return False
    before, last = windows[-2:]
    return abs(last.rate / before.rate - 1) < RATE_CHANGE and last.compiler < COMPILER_SHARE


def compiler_cpu_s(pid: int) -> float:
    """Return the CPU time of the compiler's threads of a JVM; 0 for another program."""
    return sum(seconds for name, seconds in thread_cpu_s(pid).items() if name.startswith(COMPILER_THREADS))
