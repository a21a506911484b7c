"""Every command that takes a home, with a URI: messages of a broker become tables and an archive, which all read."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
pytest.importorskip("deltalake", reason="needs deltalake: pip install 'ariane[objectstore]'")
pytest.importorskip("pandas", reason="needs pandas: pip install 'ariane[objectstore]'")

import table_stores
from ariane.cli.__main__ import run as run_command
from ariane.client.producer import Producer
from ariane.client.push_consumer import PushConsumer
from ariane.model.message import Message, ReceivedMessage
from ariane.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.long("tests/spark/test_object_store.py::test_a_job_writes_tables_that_commands_read"),
]
COUNT = 3

Run = Callable[..., str]


class Stored(NamedTuple):
    """What the commands of the pipeline have written."""

    store: str  # URI
    namesrv: str
    sent_until: str  # whole second after the last message was stored, before the pipeline has read it
    run_output: str
    archive_output: str

    @property
    def tables(self) -> str:
        return f"{self.store}/tables"

    @property
    def archive(self) -> str:
        return f"{self.store}/archive"


@pytest.fixture(scope="module")
def run_ariane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run a command and return its standard output; it must exit with status 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARIANE_HOME", str(tmp_path_factory.mktemp("home")))

        def run(*arguments: str) -> str:
            patch.setattr("sys.argv", ["ariane", *arguments])
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
                run_command()
            assert ended.value.code in (0, None), (arguments, printed.getvalue())
            return printed.getvalue()

        yield run


async def exchange(namesrv: str) -> None:
    """Send and consume messages with traces."""
    consumed = asyncio.Event()
    count = 0

    async def listen(messages: Sequence[ReceivedMessage]) -> None:
        nonlocal count
        count += len(messages)
        if count == COUNT:
            consumed.set()

    async with Producer(namesrv, "shop", trace=True) as producer:
        for number in range(COUNT):
            await producer.send(Message(topic="orders", body=b"body", keys=(f"ORDER-{number}",)))
        async with PushConsumer(namesrv, "billing", {"orders": "*"}, listen, start="first", trace=True):
            await asyncio.wait_for(consumed.wait(), 60)


@pytest.fixture(scope="module", params=table_stores.STORES)
def stored(
    spark: SparkSession, run_ariane: Run, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Stored]:
    with (
        table_stores.table_store(request.param, tmp_path_factory.mktemp("store")) as store,
        LocalCluster(tmp_path_factory.mktemp("servers"), trace_topic_enable=True) as servers,
    ):
        asyncio.run(exchange(servers.namesrv))
        sent_until = (datetime.now(UTC) + timedelta(seconds=1)).replace(microsecond=0)
        time.sleep((sent_until - datetime.now(UTC)).total_seconds())  # the pipeline has to read all of this range
        ran = run_ariane(
            "pipeline", "run", "trace", "traffic", "--once", "-n", servers.namesrv, "--home", f"{store}/tables"
        )
        archived = run_ariane(
            "archive", "run", "--topics", "orders", "--once", "-n", servers.namesrv, "--home", f"{store}/archive"
        )
        yield Stored(store, servers.namesrv, sent_until.strftime("%Y-%m-%dT%H:%M:%S"), ran, archived)


def test_run_and_archive_print_what_they_wrote(stored: Stored) -> None:
    assert "journeys" in stored.run_output
    assert "archive" in stored.archive_output


def test_status_shows_complete_tables(stored: Stored, run_ariane: Run) -> None:
    lines = [
        json.loads(line) for line in run_ariane("pipeline", "status", "--home", stored.tables, "--json").splitlines()
    ]
    rows = {line["table"]: line for line in lines}
    assert rows["journeys"]["home"] == stored.tables
    assert rows["journeys"]["rows"] == COUNT


def test_trace_finds_a_message_by_its_key(stored: Stored, run_ariane: Run) -> None:
    (line,) = run_ariane("trace", "--key", "ORDER-1", "--home", stored.tables, "--json").splitlines()
    journey = json.loads(line)
    assert (journey["topic"], journey["consumer_group"]) == ("orders", "billing")


@pytest.mark.parametrize("name", ["latency", "tps"])
def test_report_counts_the_messages(stored: Stored, run_ariane: Run, name: str) -> None:
    report = json.loads(run_ariane("report", name, "--home", stored.tables, "--json"))
    assert report["home"] == stored.tables
    assert "orders" in json.dumps(report)


def test_explain_names_the_store(stored: Stored, run_ariane: Run) -> None:
    event = json.loads(run_ariane("pipeline", "explain", "journeys", "--home", stored.tables, "--openlineage"))
    assert (event["dataset"]["namespace"], event["dataset"]["name"].lstrip("/")) == (stored.store, "tables/journeys")


def test_maintain_finds_nothing_to_do(stored: Stored, run_ariane: Run) -> None:
    assert "nothing to do" in run_ariane("pipeline", "maintain", "trace", "--home", stored.tables)


def test_backfill_misses_no_row(stored: Stored, run_ariane: Run) -> None:
    times = ("--from", "1h", "--to", stored.sent_until)
    output = run_ariane(
        "pipeline", "backfill", "trace", "-n", stored.namesrv, "--home", stored.tables, *times, "--dry-run"
    )
    # Of each message: sent, received, consumed.
    assert f"trace_events: {3 * COUNT} rows in the range, 0 missing" in output.splitlines()


def test_replay_sends_the_archive(stored: Stored, run_ariane: Run, tmp_path: Path) -> None:
    result = tmp_path / "result.jsonl"
    target = ("--topic", "orders", "--result", str(result), "-n", stored.namesrv)
    run_ariane("replay", "--from", stored.archive, "--from-topic", "orders", *target)
    assert len(result.read_text().splitlines()) == COUNT


def test_the_console_shows_reports(stored: Stored, tmp_path: Path) -> None:
    fastapi: Any = pytest.importorskip("fastapi.testclient", reason="needs fastapi: pip install 'ariane[console]'")
    from ariane.console.app import create_app
    from ariane.console.services import open_services
    from ariane.console.settings import ConsoleSettings
    from ariane.tables.table_home import object_home

    home = object_home(stored.tables, tmp_path)
    settings = ConsoleSettings(namesrv=stored.namesrv, data_dir=tmp_path / "data", tables_dir=home)
    with fastapi.TestClient(create_app(open_services(settings)), base_url="http://127.0.0.1") as client:
        page = client.get("/reports/latency")
    assert page.status_code == 200
    assert "orders" in page.text
