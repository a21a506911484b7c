"""Measures how long a test cluster takes to start and to stop: `python benches/cluster_start.py [rounds]`

Wall and CPU time of each start in this process, medians. The first start also imports the servers and has a line of its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

ROUNDS = 20


class Measured(NamedTuple):
    """Milliseconds of one start and one stop."""

    start_wall: float
    start_cpu: float
    stop_wall: float
    stop_cpu: float


def measure(directory: str | None = None, **options: int) -> Measured:
    from ariane.testing import LocalCluster

    cluster = LocalCluster(directory, **options)
    times = [time_of(cluster.start_servers), time_of(cluster.stop_servers)]
    return Measured(*times[0], *times[1])


def time_of(work: Callable[[], None]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000


def on_disk() -> Measured:
    with tempfile.TemporaryDirectory(prefix="ariane-bench-") as home:
        return measure(home)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    wall, cpu = time.perf_counter(), time.process_time()
    measure()
    print(
        f"first, with imports            {(time.perf_counter() - wall) * 1000:7.1f} ms wall, "
        f"{(time.process_time() - cpu) * 1000:7.1f} ms CPU"
    )
    cases: dict[str, Callable[[], Measured]] = {
        "in memory": measure,
        "in a directory": on_disk,
        "2 masters, 2 slaves, in memory": lambda: measure(brokers=2, slaves=1),
    }
    for name, case in cases.items():
        measured = [case() for _ in range(rounds)]
        columns = [median(column) for column in zip(*measured, strict=True)]
        print(
            f"{name:30} {columns[0]:7.1f} ms wall, {columns[1]:7.1f} ms CPU; stop {columns[2]:.1f} ms wall, "
            f"{columns[3]:.1f} ms CPU; slowest start {max(one.start_wall for one in measured):.1f} ms"
        )


if __name__ == "__main__":
    main()
