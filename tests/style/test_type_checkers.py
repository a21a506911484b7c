"""Type checkers report misspelt names in a program that uses Ariane: lazy imports do not hide the public names from them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """\
import ariane.client
from ariane import ArianeError, Consumer, Message, Producer, SimpleConsumer
from ariane import Prodcuer  # misspelt
from ariane import ArinaeError, error  # misspelt
from ariane.blocking import Producer as BlockingProducer
from ariane.blocking import Prodcuer as OtherProducer  # misspelt
from ariane.client import PushConsumer, ReconsumeLater
from ariane.client import PushConsmuer  # misspelt
from ariane.errors import MessageRefused
from ariane.errors import MesageRefused  # misspelt
from ariane.spark import RocketMQSource, drop_duplicates
from ariane.spark import drop_duplicate  # misspelt
from ariane.testing import LocalCluster
from ariane.testing import LocalClutser  # misspelt


def send(producer: BlockingProducer) -> None:
    producer.send("orders", b"created")
    producer.sned("orders", b"created")  # misspelt


async def main() -> None:
    print(ariane.__version__, ariane.Admin, ariane.errors.NotFound, ariane.client.PushConsumer)
    print(ariane.__verison__)  # misspelt
    print(ariane.Admni)  # misspelt
    print(ariane.errors.NotFuond)  # misspelt
    print(ariane.client.PullConsmuer)  # misspelt
    async with Producer("127.0.0.1:9876", "shop") as producer:
        await producer.send(Message(topic="orders", body=b"created", keys=["17"]))
        await producer.send(Message(topic="orders", body=b"created", kyes=["17"]))  # misspelt
        result = await producer.send("orders", b"created", tags="new")
        print(result.queue.queue_id)
        print(result.queue.queueid)  # misspelt
        await producer.sned("orders", b"created")  # misspelt
    async with Consumer("127.0.0.1:9876", "stock", {"orders": "*"}) as consumer:
        async for message in consumer:
            print(message.body)
            print(message.boby)  # misspelt
    async with SimpleConsumer("127.0.0.1:9876", "stock", "orders") as simple:
        for taken in await simple.receive(8, invisible=30, timeout=5):
            await taken.ack()
            await taken.change_invisble(30)  # misspelt
        await simple.receive(invisble=30)  # misspelt
    with LocalCluster() as cluster:
        print(cluster.namesrv)
        print(cluster.namesvr)  # misspelt
"""
MISSPELT = [line for line in PROGRAM.splitlines() if line.endswith("# misspelt")]


def mypy_lines(program: Path) -> set[int]:
    # In the root, mypy uses what `scripts/check` has cached of the sources.
    output = run(sys.executable, "-m", "mypy", "--strict", str(program))
    # Errors of an unchanged program are cached, too, with the path that it had before.
    return {int(number) for number in re.findall(r"/program\.py:(\d+): error: ", output)}


def pyright_lines(program: Path) -> set[int]:
    config = program.with_name("pyrightconfig.json")
    config.write_text(json.dumps({"include": [program.name], "extraPaths": [str(ROOT / "src")]}))
    output = run(sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(config))
    return {report["range"]["start"]["line"] + 1 for report in json.loads(output)["generalDiagnostics"]}


def run(*command: str) -> str:
    env = {**os.environ, "MYPYPATH": "src"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("reported_lines", [mypy_lines, pyright_lines])
def test_a_checker_reports_the_misspelt_names_and_no_others(
    reported_lines: Callable[[Path], set[int]], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    reported = reported_lines(program)
    assert [line for number, line in enumerate(PROGRAM.splitlines(), 1) if number in reported] == MISSPELT
