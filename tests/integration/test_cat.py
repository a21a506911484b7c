"""`ariane cat` as a process: round trips, pipes, signals, groups, errors with the line of the input."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ariane.testing import LocalCluster

MESSAGE_MAX = 60_000
LIMIT_S = 60.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home = tmp_path_factory.mktemp("cat")
    with LocalCluster(home, enable_property_filter=True, max_message_size=MESSAGE_MAX) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"cat{next(_numbers)}"


def command(servers: LocalCluster, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "ariane.cli", "cat", "-n", servers.namesrv, *arguments]


def cat(
    servers: LocalCluster, *arguments: str, data: bytes = b"", status: int = 0
) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(command(servers, *arguments), input=data, capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == status, (done.stdout[-500:], done.stderr.decode())
    if not status:
        assert done.stderr == b""
    return done


@contextlib.contextmanager
def running(servers: LocalCluster, *arguments: str, **pipes: object) -> Iterator[subprocess.Popen[bytes]]:
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    with subprocess.Popen(command(servers, *arguments), **options) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def objects(output: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_json_is_produced_consumed_and_produced_again(servers, topic):
    sent = [
        {"body": "é\n\t", "keys": ["a", "b"], "tags": "t", "properties": {"p": "1", "q": "ü"}, "flag": 7},
        {"body_base64": "/wD+", "keys": [], "tags": "", "properties": {}, "flag": 0},
    ]
    lines = b"".join(json.dumps(item).encode() + b"\n" for item in sent)
    cat(servers, "-P", "-J", topic, data=lines)
    first = cat(servers, topic, "-J", "-e").stdout
    cat(servers, "-P", "-J", f"{topic}copy", data=first)
    second = cat(servers, f"{topic}copy", "-J", "-e").stdout
    for output in (first, second):
        result = [
            {name: item[name] for name in item if name in sent[0] or name == "body_base64"} for item in objects(output)
        ]
        assert sorted(result, key=str) == sorted(sent, key=str)
    assert {item["topic"] for item in objects(second)} == {f"{topic}copy"}


@pytest.mark.long("tests/integration/test_cat.py::test_json_is_produced_consumed_and_produced_again")
def test_bytes_survive_the_round_trip(servers, topic, tmp_path):
    content = os.urandom(50_000) + bytes(range(256))
    (tmp_path / "file").write_bytes(content)
    cat(servers, "-P", "--whole", topic, str(tmp_path / "file"))
    assert cat(servers, topic, "-e", "-D", "").stdout == content
    # As records with a delimiter of two bytes.
    records = [os.urandom(20).replace(b"\0\1", b"x") + b"." for _ in range(10)]
    cat(servers, "-P", f"{topic}r", "-D", r"\0\x01", "-q", "0", "--in-flight", "1", data=b"\0\1".join(records))
    assert cat(servers, f"{topic}r", "-e", "-D", r"\0\x01").stdout == b"".join(record + b"\0\1" for record in records)


def test_offsets_times_queues_and_filters(servers, topic):
    data = b"".join(b"k%d:%d\n" % (number % 3, number) for number in range(10))
    cat(servers, "-P", topic, "-K", ":", "-q", "2", "--in-flight", "1", "--tag", "odd", "-H", "n=5", data=data)
    cat(servers, "-P", topic, "-q", "1", "--tag", "even", data=b"even\n")

    def bodies(*arguments: str) -> list[str]:
        return cat(servers, topic, "-e", *arguments).stdout.decode().split()

    assert bodies("-q", "2") == [str(number) for number in range(10)]
    assert bodies("-o", "-3", "-q", "2") == ["7", "8", "9"]
    assert bodies("-o", "8", "-q", "broker-a:2") == ["8", "9"]
    assert bodies("-o", "end") == []
    assert bodies("-c", "4", "-q", "2") == ["0", "1", "2", "3"]
    assert len(bodies("--since", "1h")) == 11
    assert bodies("--from", "2100-01-01") == []
    assert bodies("--tag", "even || other") == ["even"]
    assert bodies("--filter", "n BETWEEN 4 AND 6 AND TAGS = 'odd'", "-c", "1") == ["0"]
    assert bodies("-k", "k1", "-f", r"%o:%k\n") == ["1:k1", "4:k1", "7:k1"]
    assert b"|0|" in cat(servers, topic, "-e", "-q", "2", "--hex", "-c", "1").stdout
    error = cat(servers, topic, "-e", "-o", "99", status=2).stderr
    assert b"--offset = 99: broker-a:0 has offsets 0 to 0" in error
    assert b"no such queue; the topic has broker-a:0, broker-a:1" in cat(servers, topic, "-q", "9", status=2).stderr


def test_the_reader_of_a_pipe_may_leave(servers, topic):
    cat(servers, "-P", topic, data=b"line\n" * 3)
    # While messages arrive, and while none does: cat follows the topic and would run without limit.
    with running(servers, topic, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.wait(LIMIT_S) == -signal.SIGPIPE
        assert process.stderr.read() == b""


def test_ctrl_c_ends_a_consumer_after_what_it_has_printed(servers, topic):
    cat(servers, "-P", topic, data=b"a\nb\n")
    with running(servers, topic, "-g", f"g-{topic}") as process:
        assert process.stdout is not None and process.stderr is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {b"a\n", b"b\n"}
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        assert process.stderr.read() == b"Interrupted.\n"
    # What was printed is committed.
    cat(servers, "-P", topic, data=b"c\n")
    assert cat(servers, topic, "-g", f"g-{topic}", "-e").stdout == b"c\n"


def test_a_group_commits_only_what_was_written(servers, topic):
    group = f"g-{topic}"
    cat(servers, "-P", topic, "-q", "0", "--in-flight", "1", data=b"".join(b"%d\n" % number for number in range(50)))
    assert cat(servers, topic, "-g", group, "-c", "5").stdout == b"0\n1\n2\n3\n4\n"
    # The rest does not fit into the pipe, and its reader leaves without reading.
    big = b"x" * 50_000
    for _ in range(4):
        cat(servers, "-P", topic, "-q", "0", "--whole", data=big)
    with running(servers, topic, "-g", group, "-f", "%s%s%s") as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"5"
        process.stdout.close()
        assert process.wait(LIMIT_S) == -signal.SIGPIPE
    rest = cat(servers, topic, "-g", group, "-e", "-D", "|").stdout.split(b"|")
    # At least once: the batch that could not be written is printed again, as a whole.
    assert rest[-5:-1] == [big] * 4
    assert cat(servers, topic, "-g", group, "-e").stdout == b""


@pytest.mark.long(
    "tests/integration/test_cat.py::test_offsets_times_queues_and_filters",
    "tests/interop/test_client_features_at_java.py::test_push_by_sql",
)
def test_a_group_filters_by_sql(servers, topic):
    cat(servers, "-P", topic, "-H", "n=1", data=b"one\n")
    cat(servers, "-P", topic, "-H", "n=2", data=b"two\n")
    assert cat(servers, topic, "-g", f"g-{topic}", "--filter", "n > 1", "-e").stdout == b"two\n"
    cat(servers, "-P", topic, "-H", "n=3", data=b"three\n")
    assert cat(servers, topic, "-g", f"g-{topic}", "--filter", "n > 1", "-e").stdout == b"three\n"


def test_ctrl_c_ends_a_producer_and_reports_where_it_stopped(servers, topic):
    with running(servers, "-P", topic) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"a\nb\nunfinished")
        process.stdin.flush()
        deadline = time.monotonic() + LIMIT_S
        while True:  # messages are sent while the input is still open
            stored = subprocess.run(command(servers, topic, "-e"), capture_output=True, timeout=LIMIT_S, check=False)
            if sorted(stored.stdout.split()) == [b"a", b"b"]:
                break
            assert time.monotonic() < deadline, stored
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
        output = process.stderr.read().decode().splitlines()
    assert output == ["2 messages sent, 0 failed; any input after line 2 was not sent", "Interrupted."]


@pytest.mark.parametrize(
    ("arguments", "data", "error"),
    [
        ((), b"a\n\nb\n", "Error: line 2: the body is empty"),
        (("-J",), b'{"body":"a"}\n{"body":1}\n', "Error: line 2: body = 1: expected a text"),
        (("-D", r"\0"), b"a\0\0b", "Error: record 2: the body is empty"),
        (("-K", ":"), b"k:a\n k :\n", "Error: line 2: the body is empty"),
        # As random bytes, which do not shrink by compression.
        ((), b"a\n" + os.urandom(MESSAGE_MAX + 1).replace(b"\n", b"x") + b"\n", "maxMessageSize"),
    ],
)
def test_a_record_that_cannot_be_sent_is_named(servers, topic, arguments, data, error):
    done = cat(servers, "-P", topic, *arguments, data=data, status=1)
    output = done.stderr.decode()
    assert error in output
    assert "line 2: " in output or "record 2: " in output
    assert ", 1 failed" in output
    assert b"a" in cat(servers, topic, "-e").stdout


def test_files_are_named_in_errors(servers, topic, tmp_path: Path):
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"3\n\n")
    output = cat(servers, "-P", topic, str(tmp_path / "a"), str(tmp_path / "b"), status=1).stderr.decode()
    assert f"Error: {tmp_path / 'b'} line 2: the body is empty" in output
    assert "3 messages sent, 1 failed" in output
    cat(servers, "-P", topic, "--skip-empty", str(tmp_path / "b"))
    assert (
        f"{tmp_path / 'none'}: No such file"
        in cat(servers, "-P", topic, str(tmp_path / "none"), status=1).stderr.decode()
    )
    assert b"Is a directory" in cat(servers, "-P", topic, str(tmp_path), status=1).stderr


def test_a_delayed_message_arrives_later(servers, topic):
    cat(servers, "-P", topic, "--delay", "1s", data=b"late\n")
    (message,) = objects(cat(servers, topic, "-J", "-c", "1").stdout)
    assert message["body"] == "late"
    stored, born = (time.strptime(str(message[name])[:19], "%Y-%m-%dT%H:%M:%S") for name in ("stored_at", "born_at"))
    assert time.mktime(stored) - time.mktime(born) >= 1


def test_a_topic_that_does_not_exist_is_an_error(servers, topic):
    for arguments in ((), ("-g", "g")):
        assert b"no such topic" in cat(servers, topic, *arguments, status=1).stderr
