"""Invalid command lines of every command: fault, value and expected form, without a traceback, exit status 2."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import ariane
from ariane.cli import main
from ariane.cli.options import command_names, shared_options, spark_options
from ariane.cli.servers.process import run_server, signals
from ariane.cli.up import up_command as upping
from ariane.errors import ConfigError, UsageError
from ariane.nameserver.server import local_addr

HUGE = "9" * 5000
WRONG: list[tuple[str, str]] = [
    ("nosuch", "No such command 'nosuch'"),
    ("up --namesrv-port 70000", "'70000': expected a port from 0 to 65535"),
    ("up --namesrv-port -1", "'-1': expected a port"),
    ("up --namesrv-port x", "'x': expected a port"),
    (f"up --namesrv-port {HUGE}", "(5,000 characters): expected a port"),
    ("up --broker-port 65535", "also listens on 65533 and 65536"),
    ("up --broker-port 2", "also listens on 0 and 3"),
    ("up --namesrv-port 10909", "--namesrv-port = 10909: the broker listens on 10909, 10911 and 10912"),
    ("up --exit", "--exit: requires --demo"),
    ("up --home s3://b/t", "'s3://b/t' is a URI (s3)"),
    ("up --home=", "empty path"),
    ("up more", "unexpected extra argument"),
    ("namesrv --port 70000", "expected a port from 0 to 65535"),
    ("namesrv -c hdfs:///x", "is a URI (hdfs)"),
    ("namesrv --log file:///x", "is a URI (file)"),
    ("broker --port -5", "expected a port from 0 to 65535"),
    ("broker -n nonsense -p", "'nonsense': expected HOST:PORT"),
    ("broker --configFile=", "empty path"),
    ("trace", "specify exactly one of --key, --id and --topic"),
    ("trace --key a --id b", "specify exactly one of"),
    ("trace --key=", "empty value"),
    ("trace --key a --slowest", "--slowest: requires --topic"),
    ("trace --key a --since 1h", "requires --topic"),
    ("trace --key a --limit 0", "'0': expected a whole number from 1 to 10000"),
    ("trace --topic a.b", "characters other than"),
    ("trace --topic a --since x", "--since = 'x': expected a duration before now"),
    ("trace --key a --home s3a://b", "expected a local directory or a URI with s3://"),
    ("cat", "Missing argument 'TOPIC'"),
    ("cat a.b", "characters other than"),
    ("cat t file", "FILE: requires -P"),
    ("cat t --delay 5s", "--delay: requires -P"),
    ("cat -P t --hex", "--hex: cannot be combined with -P"),
    ("cat -P t --offset 0", "--offset: cannot be combined with -P"),
    ("cat -P t -o end", "--offset: cannot be combined with -P"),
    ("cat -P t --delay 5", "--delay = '5': expected a positive number followed by"),
    ("cat -P t --delay 5s --delay-level 1", "at most one of --delay"),
    ("cat -P t -H a", "--property = 'a': expected NAME=VALUE"),
    ("cat -P t --delimiter=", "empty delimiter"),
    ("cat -P t --whole --json", "--whole: cannot be combined with --json"),
    ("cat -P t -J -K :", "--key-delimiter: cannot be combined with --json"),
    ("cat t -q x", "'x': expected a queue id (3), or broker and id (broker-a:3)"),
    ("cat t -q :3", "':3': expected a queue id"),
    ("cat t -o x", "'x': expected beginning, end, an offset"),
    ("cat t -o -0", "'-0': expected beginning"),
    ("cat t -o 5 --since 1h", "--offset: cannot be combined with --since"),
    ("cat t --since x", "--since = 'x': expected a duration before now"),
    ("cat t -g g -o 5", "expected beginning or end with --group"),
    ("cat t -g g -q 1", "--queue: cannot be combined with --group"),
    ("cat t -g g -k a", "--key = 'a': cannot be combined with --group"),
    ("cat t --tag a --filter b=1", "--tag = 'a': cannot be combined with --filter"),
    ("cat t --filter a>", "--filter: column 3"),
    ("cat t -f %x", "unknown field %x"),
    ("cat t -f a --json", "at most one of --format, --json and --hex"),
    ("cat t -c 0", "'0': expected a whole number of at least 1"),
    ("bench", "Missing argument 'MODE'"),
    ("bench nothing", "'nothing': expected send, consume, both or request"),
    ("bench send -m fast", "'fast': expected sync, async, batch or one-way"),
    ("bench send -s 5m", "'5m': expected bytes from 1 to 4194304"),
    ("bench send -s 0", "'0': expected bytes"),
    ("bench send --rate x", "--rate = 'x': expected messages per second"),
    ("bench send --batch 5", "--batch = 5: requires --method batch"),
    ("bench send -m sync --in-flight 5", "--in-flight = 5: cannot be combined with --method sync"),
    ("bench send --consumers 2", "--consumers = 2: requires mode both or request"),
    ("bench send --clients 9 -c 5", "--clients = 9: expected at most --messages 5"),
    ("bench send -c 10 --warm-up 10", "--warm-up = 10: expected fewer than --messages 10"),
    ("bench send -m batch -s 1m --batch 5", "--batch = 5: times --size 1048576 exceeds"),
    ("bench both -s 10", "--size = 10: expected at least 24 in mode both"),
    ("bench consume --rate 5", "--rate = '5': has no effect in mode consume"),
    ("bench request -m sync", "--method = 'sync': has no effect in mode request"),
    ("bench send --access-key a", "--secret-key: missing"),
    ("report", "expected a report:\n  tps "),
    ("report latncy", "Did you mean 'latency'?"),
    ("report lag --watch nan", "'nan': expected a number of seconds of at least 1"),
    ("report lag --watch inf", "'inf': expected a number of seconds"),
    ("report lag --html s3://b/x.html", "is a URI (s3)"),
    ("report lag --json --html x.html", "cannot be combined with --json"),
    ("report lag --group=", "the group is blank"),
    ("report lag --since 1h --until 2h", "not before --until 2h"),
    ("pipeline run", "expected one or more jobs:\n  trace "),
    ("pipeline run nothing", "JOB = 'nothing': unknown job"),
    ("pipeline run all nothing", "JOB = 'nothing': unknown job"),
    ("pipeline run trace -n a:b", "'a:b': expected HOST:PORT"),
    ("pipeline run trace -n ;", "empty list"),
    ("pipeline run trace -n http://a:1", "'http://a:1': expected HOST:PORT"),
    ("pipeline run trace --home s3:///t", "expected s3://bucket/prefix"),
    ("pipeline run trace --keep-days 0", "'0': expected a whole number of at least 1"),
    ("pipeline run trace --interval 0", "'0': expected a number of seconds of at least 0.1"),
    ("pipeline run trace --interval nan", "'nan': expected a number of seconds"),
    ("pipeline run trace --topic=", "the topic is blank"),
    ("pipeline run trace --delay-levels 1x", "--delay-levels = '1x'"),
    ("pipeline run trace --master=", "empty value"),
    ("pipeline run trace --conf x", "--conf = 'x': expected KEY=VALUE"),
    ("pipeline run trace --conf spark.a=", "expected KEY=VALUE"),
    ("pipeline run trace --conf driver.memory=1g", "expected a name that starts with 'spark.'"),
    ("pipeline run trace --conf spark.master=yarn", "give --master"),
    ("pipeline run trace --conf spark.sql.session.timeZone=CET", "tables are in UTC"),
    ("pipeline run trace --conf spark.a=1 --conf spark.a=2", "--conf = 'spark.a': given twice"),
    ("pipeline run trace --option useTls", "expected NAME=VALUE"),
    ("pipeline run trace --access-key a", "--secret-key: missing; specify both"),
    ("pipeline tables nothing", "TABLE = 'nothing': unknown table"),
    ("pipeline explain nothing", "TABLE = 'nothing': unknown table"),
    ("pipeline backfill --from 1h --to 2h", "expected a time after --from"),
    ("pipeline backfill --from 1h --to never", "expected a duration before now"),
    ("pipeline status --home ftp://b", "URI with s3://, gs://, abfss://, hdfs://"),
    ("collect --interval -1", "expected a number of seconds of at least 1"),
    ("collect --groups-max 0", "expected a whole number of at least 1"),
    ("collect --topic a.b", "characters other than"),
    ("collect --bind 0.0.0.0", "--metrics-port: required with --bind"),
    ("collect --metrics-port 0.0.0.0:9464", "'0.0.0.0:9464': expected a port from 0 to 65535"),
    ("collect --metrics-port 9464 -Dtls.server.cert=c.pem", "-D = 'tls.server.cert': expected one of"),
    ("pipeline run trace --insecure", "--metrics-port: required with --bind"),
    ("archive run", "specify exactly one of --topics and --topics-pattern"),
    ("archive run --topics a --topics-pattern b", "specify exactly one of --topics and --topics-pattern"),
    ("archive run --topics a,b.c", "characters other than"),
    ("archive run --topics-pattern (", "expected a regular expression"),
    ("archive run --topics a --home s3://b/t?region=x", "expected s3://bucket/prefix"),
    ("pipeline status --home hdfs:///tables", "expected hdfs://namenode:8020/directory"),
    ("replay", "specify --from DIR (an archive), --from-topic TOPIC, or both"),
    ("replay --from file:///b --dry-run", "expected a local directory"),
    ("replay --from-topic a", "--topic: missing; messages of a have no original topic"),
    ("replay --from-topic a --topic b", "--result: missing; specify a file"),
    ("replay --from-topic a --topic b --result x.csv", "ends in .parquet or .jsonl"),
    ("replay --from-topic a --topic b --result s3://b/x.jsonl", "is a URI (s3)"),
    ("replay --from-topic a --topic b --dry-run --rate 0", "--rate = '0': expected messages per second"),
    (f"replay --from-topic a --topic b --dry-run --rate {HUGE}", "expected messages per second"),
    ("replay --from-topic a --topic b --dry-run --since 1h --until 2h", "not before --until 2h"),
    ("store check", "Missing argument 'DIR'"),
    ("store check s3://b", "is a URI (s3)"),
    ("store cat . --queue 1", "--queue = 1: requires --topic"),
    ("store cat . --topic a --queue -1", "'-1': expected a whole number of at least 0"),
    ("store cat . --from x", "'x': expected a whole number of at least 0"),
    ("store cat . --body xml", "--body = 'xml': expected text, hex or none"),
]


def called(arguments: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Exit status and what the command printed on standard error."""
    monkeypatch.setattr(sys, "argv", ["ariane", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(("line", "said"), WRONG, ids=[line[:40] for line, _ in WRONG])
def test_an_invalid_command_line_is_reported_with_the_fault(
    line: str, said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, reported = called(line.split(), capsys, monkeypatch)
    assert (status, said in reported) == (2, True), reported
    assert "python -m" not in reported
    assert "Traceback" not in reported
    assert max(map(len, reported.splitlines())) < 300


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["broker", "-c", "no/such/file"], "no/such/file"),
        (["namesrv", "-c", "."], "Is a directory"),
        (["trace", "--key", "a", "--home", "no/such/home"], "no tables in no/such/home"),
        (["store", "check", "no/such/dir"], "no/such/dir"),
    ],
)
def test_a_failure_is_one_line(
    arguments: list[str], said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the homes of running demos would be proposed
    status, reported = called(arguments, capsys, monkeypatch)
    assert status == (2 if arguments[0] == "store" else 1)  # documented: 2, it cannot be read
    assert reported.startswith("Error: ")
    assert said in reported
    assert len(reported.splitlines()) == 1


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--log = .*not writable"):
        run_server.log_to(tmp_path / "file" / "broker.log")


def test_errors_of_the_operating_system_are_one_line(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device", "/data/x")

    monkeypatch.setattr("ariane.cli.command_table.application_of", lambda _: full)
    assert called([], capsys, monkeypatch) == (1, "Error: /data/x: No space left on device\n")


def test_an_interrupted_command_reports_the_interruption(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(directory: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ariane.cli.servers.store_command._root", interrupted)
    assert called(["store", "check", "."], capsys, monkeypatch) == (130, "Interrupted.\n")


def test_the_version_is_printed() -> None:
    done = CliRunner().invoke(main.app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"ariane {ariane.__version__}\n")


def commands() -> list[list[str]]:
    groups = {"pipeline": ["run", "status", "tables"], "archive": ["run"], "store": ["check", "cat"]}
    return [
        [name, *part] for name in command_names.COMMANDS for part in ([[item] for item in groups.get(name, [])] or [[]])
    ]


@pytest.mark.parametrize("command", [[], *commands()], ids=" ".join)
def test_help_fits_80_columns(command: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["ariane", *command, "--help"])
    with pytest.raises(SystemExit):
        main.run()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Usage: {' '.join(['ariane', *command])} ")
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage: ")], "a summary is cut"


def test_listed_names_equal_the_registered_commands_jobs_and_reports() -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
    from ariane.pipeline.jobs import JOBS
    from ariane.reports import REPORTS

    registered = [command.name for command in (*main.app.registered_commands, *main.app.registered_groups)]
    assert set(command_names.COMMANDS) == set(registered)
    assert (*command_names.JOBS, *command_names.EXPORT_JOBS) == tuple(JOBS)
    assert tuple(command_names.REPORTS) == tuple(REPORTS)
    for listed in (command_names.COMMANDS, command_names.JOBS, command_names.REPORTS):
        assert max(len(meaning) for meaning in listed.values()) <= 80 - 17


def test_repeated_jobs_are_expanded_once() -> None:
    assert command_names.parse_jobs(["trace", "lag", "trace"]) == ("trace", "lag")
    assert command_names.parse_jobs(["lag", "all"]) == tuple(command_names.JOBS)
    assert command_names.parse_jobs(["otel", "all"]) == (*command_names.JOBS, "otel")  # an export has to be named


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pipeline run nothing -n a:1", "unknown job"),
        ("pipelin run all", "Did you mean 'pipeline'?"),
        ("report nothing", "unknown report"),
    ],
)
def test_names_are_checked_without_optional_packages(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        command_names.check(words.split())


@pytest.mark.parametrize(
    "words", ["", "-h", "up --demo", "pipeline run -n a:1 nothing", "report", "test -k x", "install dev"]
)
def test_values_that_only_the_command_can_check_are_accepted(words: str) -> None:
    command_names.check(words.split())


def test_a_command_that_needs_spark_exits_before_it_under_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(spark_options.PROBE, "1")
    run = CliRunner().invoke
    for line in ("pipeline run trace", "archive run --topics a", "up --demo --exit"):
        assert run(main.app, line.split()).exit_code == spark_options.NEEDED
    assert run(main.app, ["pipeline", "run", "trace", "--interval", "x"]).exit_code == 2


def test_missing_spark_is_reported_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ariane.pipeline.spark_session.spark_fault", lambda: "pyspark is not installed: pip install it")
    done = CliRunner().invoke(main.app, ["pipeline", "run", "trace"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == "Spark: pyspark is not installed: pip install it"


@pytest.mark.parametrize("text", ["s3://b/t", "S3A://b", "file:///x", "hdfs:/x", "", "  ", "a\0b"])
def test_a_path_that_is_not_local_is_rejected(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        shared_options.local_path(text)


def test_local_paths_are_accepted_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/me")
    assert shared_options.local_path("~/t") == Path("/users/me/t")
    assert shared_options.local_path("a:b/c") == Path("a:b/c")
    assert shared_options.local_path("C:/tables") == Path("C:/tables"), "a drive is no scheme"


def test_a_default_home_that_is_a_uri_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    from ariane.cli.options import paths as homes

    monkeypatch.setenv("ARIANE_HOME", "s3://b/t")
    with pytest.raises(UsageError, match="ARIANE_HOME = 's3://b/t': .* is a URI"):
        homes.tables_dir(None)


@pytest.mark.parametrize(
    "texts",
    [["fs.s3a.secret.key=hidden"], ["spark.a=hidden", "spark.a=hidden"], ["spark.master=hidden"], ["=hidden"]],
)
def test_the_value_of_a_spark_setting_is_not_printed(texts: list[str]) -> None:
    """It may be a password, and error messages are logged."""
    from ariane.pipeline.spark_session import _merge_settings

    with pytest.raises(UsageError) as caught:
        spark_options.parse_conf(texts)
    assert "hidden" not in str(caught.value)
    with pytest.raises(ConfigError) as refused:
        _merge_settings({}, {"fs.s3a.secret.key": "hidden"})
    assert "hidden" not in str(refused.value)


def test_a_second_signal_terminates_a_stopping_command(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    output: list[str] = []
    stop = signals.thread_stop_event(output.append)
    handlers[signal.SIGINT](signal.SIGINT, None)
    assert stop.is_set()
    assert output == ["stopping after the current batch; press Ctrl-C again to stop immediately"]
    assert set(handlers.values()) == {signal.default_int_handler}


def test_a_start_is_cancelled_by_a_stop_request(capsys: Any) -> None:
    ended: list[str] = []

    async def start() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("in order")

    async def main_task() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_soon(stop.set)
        with pytest.raises(upping.Interrupted):
            await upping._run_unless(stop, start())

    asyncio.run(main_task())
    assert ended == ["in order"]
    assert capsys.readouterr().out.endswith(" stopping\n")


def test_a_start_that_completes_before_a_stop_returns_its_result() -> None:
    async def start() -> int:
        return 7

    async def main_task() -> int:
        return await upping._run_unless(asyncio.Event(), start())

    assert asyncio.run(main_task()) == 7


@pytest.mark.parametrize("has_tables", [True, False])
def test_the_demo_writes_the_tables_that_its_printed_command_reads(
    tmp_path: Path, has_tables: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if `pipeline run --home` created a tables directory in the home before."""
    from ariane.cli.options import paths as homes
    from ariane.cli.up import demo_traffic
    from ariane.net.listening.local_authority import LocalFiles
    from ariane.pipeline import spark_session

    if has_tables:
        (tmp_path / "journeys").mkdir()
        (tmp_path / "journeys" / "CURRENT").touch()
    started: list[tuple[str, ...]] = []

    class Started:
        async def start(self, program: Any) -> str:
            started.append(program.arguments)
            return ""

    async def run_forever(namesrv: str, client: Any, tables: Path | None, say: Any, stop: asyncio.Event) -> None:
        assert (client.use_tls, client.tls_ca_file) == (True, "ca.pem")
        assert tables == homes.tables_dir(tmp_path)

    files = LocalFiles(Path("ca.pem"), Path("server.pem"), Path("server.key"), is_new=False)
    monkeypatch.setattr(spark_session, "spark_fault", lambda: None)
    monkeypatch.setattr(demo_traffic, "run_forever", run_forever)
    with homes.locked_home(tmp_path):
        asyncio.run(upping._demo(Started(), tmp_path, "a:1", False, asyncio.Event(), files))  # type: ignore[arg-type]
        (arguments,) = started
        assert arguments[arguments.index("--tls-ca-file") + 1] == "ca.pem"
        written = Path(arguments[arguments.index("--home") + 1])
        assert homes.tables_dir(written) == homes.tables_dir(tmp_path)


@pytest.mark.parametrize(("bound", "addr"), [("0.0.0.0", "127.0.0.1:9876"), ("10.0.0.7", "10.0.0.7:9876")])
def test_a_name_server_prints_an_address_usable_by_local_clients(bound: str, addr: str) -> None:
    assert local_addr(bound, 9876) == addr
