"""`ariane cat` and `ariane bench` against a Java 4.9.4 name server and broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ariane.testing import java

SETTINGS = {"enablePropertyFilter": "true", "flushDiskType": "SYNC_FLUSH"}
pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("java")
    with (
        java.name_server(home / "ns") as names,
        java.broker(home / "b", names.addr, properties=SETTINGS),
    ):
        yield names.addr


def ariane(namesrv: str, *arguments: str, data: bytes = b"", status: int = 0) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "ariane.cli", *arguments, "-n", namesrv]
    done = subprocess.run(command, input=data, capture_output=True, timeout=120, check=False)
    assert done.returncode == status, (done.stdout[-2000:], done.stderr.decode())
    return done


@pytest.mark.long(
    "tests/integration/test_cat.py::test_offsets_times_queues_and_filters",
    "tests/integration/test_bench.py::test_sends_of_every_method_and_then_consumes",
)
def test_cat_round_trip_groups_filters_and_refusals(namesrv: str) -> None:
    sent = [{"body": f"{n}", "keys": [f"k{n}"], "tags": "AB"[n % 2], "properties": {"n": str(n)}} for n in range(6)]
    sent.append({"body_base64": "/wD+", "keys": [], "tags": "", "properties": {}})
    ariane(namesrv, "cat", "-P", "-J", "cats", data=b"".join(json.dumps(one).encode() + b"\n" for one in sent))
    output = ariane(namesrv, "cat", "cats", "-J", "-e").stdout
    got = [
        {name: one[name] for name in one if name in sent[0] or name == "body_base64"}
        for one in map(json.loads, output.splitlines())
    ]
    assert sorted(got, key=str) == sorted(sent, key=str)
    ariane(namesrv, "cat", "-P", "-J", "copies", data=output)
    assert sorted(ariane(namesrv, "cat", "copies", "-g", "g", "-e", "--tag", "A").stdout.split()) == [b"0", b"2", b"4"]
    assert ariane(namesrv, "cat", "copies", "-g", "g", "-e", "--tag", "A").stdout == b""
    assert sorted(ariane(namesrv, "cat", "cats", "-e", "--filter", "n > 3").stdout.split()) == [b"4", b"5"]
    assert ariane(namesrv, "cat", "cats", "-e", "-g", "s", "--filter", "n = 3").stdout == b"3\n"
    assert ariane(namesrv, "cat", "cats", "-e", "-k", "k1", "--since", "1h").stdout == b"1\n"
    refused = ariane(namesrv, "cat", "-P", "TBW102X", "--whole", data=os.urandom(5_000_000), status=1).stderr
    assert b"standard input: " in refused and b"0 messages sent, 1 failed" in refused
    # 4.x has no timers: the message is delivered immediately, which must not go unnoticed.
    refused = ariane(namesrv, "cat", "-P", "cats", "--delay", "1h", data=b"late\n", status=1).stderr
    assert b"would deliver it immediately" in refused and b"0 messages sent, 1 failed" in refused


@pytest.mark.long(
    "tests/integration/test_cat.py::test_offsets_times_queues_and_filters",
    "tests/integration/test_bench.py::test_sends_of_every_method_and_then_consumes",
)
@pytest.mark.parametrize(
    ("arguments", "completed"),
    [
        (("both", "-t", "bench", "-c", "300", "--consumers", "2"), {"send": 300, "consume": 300}),
        (("send", "-t", "bench", "-c", "300", "-m", "batch"), {"send": 300}),
        # Slowly: Java's broker drops requests that wait for more than 200 ms, which here a benchmark would report as missing.
        (("send", "-t", "bench", "-c", "100", "-m", "one-way", "--rate", "100/s"), {"send": 100}),
        (("consume", "-t", "bench"), {"consume": 700}),
        (("request", "-t", "requests", "-c", "100"), {"request": 100, "reply": 100}),
    ],
)
def test_bench(namesrv: str, arguments: tuple[str, ...], completed: dict[str, int]) -> None:
    result = json.loads(ariane(namesrv, "bench", *arguments, "--json").stdout)
    assert {one["role"]: one["completed"] for one in result["throughputs"]} == completed
    assert (result["failed"], result["missing"]) == (0, 0)
    (broker,) = result["brokers"]
    facts = (broker["version"], broker["is_ariane"], broker["flush_mode"], broker["role"], broker["errors"])
    assert facts == ("V4_9_4", False, "SYNC_FLUSH", "ASYNC_MASTER", [])
