"""Runs the same `mqadmin` lines with Java's tools and with ours on one cluster, and compares what they print.

    CLUSTERS = ("ariane", "java")                                             # parameters of a module-scoped fixture
    with start_cluster("java", home) as cluster: ...                          # addresses of a name server and `broker-a`
    topics, status = run_both(namesrv, "topicList", "topicStatus -t T")       # Java's lines share one JVM; ours run in process
    topics.assert_equal(in_any_order=True)
    status.assert_equal(masks=(Mask(r"\\d{4}-\\d\\d-\\d\\d [\\d:,]+", "times differ by retries"),))

Texts are compared to the last blank and line end. A mask replaces what differs by nature on both sides, with its reason; a
difference of behaviour is not masked: compare `java` and `ours` in the test and say why there.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ariane.cli.mqadmin.main import main
from ariane.net.pools.connection_pool import ConnectionPool
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.testing import LocalCluster, java

CLUSTERS = ("ariane", "java")  # whose servers; both tools run against each
START_S = 60.0

# Lines of the JVM and of its logging, which are not part of a command's output.
_NOISE = re.compile(r"OpenJDK 64-Bit Server VM warning|RocketMQLog:WARN|SLF4J|log4j:WARN")


class ServerAddresses(NamedTuple):
    """Addresses of a name server and a broker, Ariane's or Java's."""

    namesrv: str
    broker: str


@contextlib.contextmanager
def start_cluster(kind: str, home: Path) -> Iterator[ServerAddresses]:
    """Run a name server and the broker `broker-a` of one of CLUSTERS until the end of the block."""
    if kind == "ariane":
        with LocalCluster(home) as servers:
            yield ServerAddresses(servers.namesrv, servers.broker.addr)
    else:
        with java.name_server(home / "ns") as names, java.broker(home / "broker", names.addr) as broker:
            asyncio.run(_until_first_sample(broker.addr))
            yield ServerAddresses(names.addr, broker.addr)


async def _until_first_sample(addr: str) -> None:
    """Wait until a Java broker reports its state: before its first sample of rates it responds NoSuchElementException."""
    async with asyncio.timeout(START_S), ConnectionPool() as peers:
        while (await peers.request(addr, RequestCode.GET_BROKER_RUNTIME_INFO)).code != ResponseCode.SUCCESS:
            await asyncio.sleep(0.1)


class Mask(NamedTuple):
    """Text that cannot be equal. `pattern`: regular expression of it; `reason`: why it differs, printed in its place."""

    pattern: str
    reason: str


class Ours(NamedTuple):
    """Result of one of our lines."""

    output: str
    error: str
    status: int


class Comparison(NamedTuple):
    """Output of one line from both tools. `java` contains stderr, too: stack traces of failures."""

    line: str
    java: str
    ours: str
    error: str
    status: int

    def assert_equal(self, masks: Iterable[Mask] = (), *, in_any_order: bool = False) -> None:
        """Check that both printed the same.

        Args:
            masks: What is replaced on both sides before the comparison.
            in_any_order: Compare the lines sorted, where Java prints a hash table in its order.
        """
        assert (self.status, self.error) == (0, ""), self
        theirs, ours = (_lines(text, masks, in_any_order) for text in (self.java, self.ours))
        assert ours == theirs, self.line

    def fields(self, marker: str = "") -> tuple[list[list[str]], list[list[str]]]:
        """Return Java's and our lines that contain `marker`, split at blanks."""
        theirs, ours = (
            [line.split() for line in text.splitlines() if marker in line] for text in (self.java, self.ours)
        )
        return theirs, ours


def run_both(namesrv: str, *lines: str) -> list[Comparison]:
    """Run each line with Java's tools and then with ours. Words of a line are separated by one space."""
    theirs = run_java(namesrv, *lines)
    return [Comparison(line, output, *run_ours(namesrv, line)) for line, output in zip(lines, theirs, strict=True)]


def run_java(namesrv: str, *lines: str) -> list[str]:
    """Return the exact output of each line, run in one JVM by Java's tools."""
    printed = [line for line in java.run("ariane.peers.Admin", [namesrv, *lines]) if not _NOISE.search(line)]
    outputs, text = [], "".join(f"{line}\n" for line in printed)
    for number in range(1, len(lines) + 1):
        # The peer prints a line end before each mark, because some commands print none.
        output, mark, text = text.partition(f"\n#### {number}\n")
        assert mark, f"mqadmin ended at line {number} ({lines[number - 1]}):\n{output}"
        outputs.append(output)
    return outputs


def run_ours(namesrv: str, line: str) -> Ours:
    """Run one line in this process."""
    output, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
        status = main([*line.split(" "), "-n", namesrv])
    return Ours(output.getvalue(), error.getvalue(), status)


def run_json(namesrv: str, line: str) -> Any:
    """Return the value that a line prints with `--json`."""
    output, error, status = run_ours(namesrv, f"{line} --json")
    assert (status, error) == (0, ""), (line, error)
    return json.loads(output)


def _lines(text: str, masks: Iterable[Mask], is_sorted: bool) -> Sequence[str]:
    for mask in masks:
        text = re.sub(mask.pattern, f"<{mask.reason}>", text)
    # "a" and "a\n" stay different: scripts depend on line ends that Java omits.
    result = text.split("\n")
    return sorted(result) if is_sorted else result
