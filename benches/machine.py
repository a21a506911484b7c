"""What a measurement ran on: the machine and the versions of everything that takes part."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ariane.testing import java
from servers import HERE


def describe_machine(place: Path) -> dict[str, Any]:
    """Return processor, cores, memory, kernel, and the file system of the stores in `place`."""
    processors = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    return {
        "processor": processors[0] if processors else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / 1024**2, 1) if memory else None,
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": file_system(place.resolve(), Path("/proc/self/mounts").read_text()),
    }


def file_system(path: Path, mounts: str) -> str:
    """Return the type of the file system that contains a path, by the text of /proc/self/mounts."""
    kinds = {Path(fields[1]): fields[2] for fields in (line.split() for line in mounts.splitlines())}
    return next((kinds[parent] for parent in (path, *path.parents) if parent in kinds), "unknown")


def load_average() -> float:
    """Return the load average of the last minute: other work on the machine, if it is read before a measurement."""
    return round(os.getloadavg()[0], 2)


def versions() -> dict[str, str]:
    """Return the versions of the programs by name."""
    found = {name: installed(name) for name in ("ariane", "ariane-native", "uvloop", "msgspec")}
    commit = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude", "*"],
        capture_output=True,
        text=True,
        check=False,
    )
    first_line = (java.java_version().splitlines() or [""])[0]
    return {
        **{name: text for name, text in found.items() if text},
        **({"commit": commit.stdout.strip()} if commit.returncode == 0 else {}),
        "python": platform.python_version(),
        "rocketmq": "4.9.4",
        "java": re.sub(r'^openjdk version "(.*?)".*', r"\1", first_line),
    }


def installed(name: str) -> str:
    """Return the version of a distribution; empty if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
