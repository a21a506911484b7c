"""Errors of Spark: transient ones are retried with growing delays, all others are printed as one line."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ariane.errors import ArianeError, ConfigError
from ariane.pipeline import restarts
from ariane.pipeline.spark_session import JAVA_OPTIONS, _merge_settings

WORKER = "o1.start.\n: org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache…\n" * 20


CRASH = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"


class Stop(threading.Event):
    """An event that notes how long it was waited for, and is never set."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        return self.is_set()


class Failing:
    """Work that fails so often, then returns how often it was done."""

    def __init__(self, failures: int, text: str = WORKER) -> None:
        self.left = failures
        self.text = text
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise RuntimeError(self.text)
        return self.calls


def test_a_transient_error_is_one_line_and_retried_with_growing_delays() -> None:
    stop, output = Stop(), list[str]()
    assert restarts.retry_transient("journeys", Failing(5), stop, output.append) == 6
    assert stop.waited == [5, 10, 20, 40, 60]
    assert output[0] == "journeys failed: Spark: Python worker failed to connect back; retrying in 5 s"
    assert all("\n" not in line for line in output)


def test_repeated_failures_end_with_one_line() -> None:
    stop, work = Stop(), Failing(100, CRASH)
    with pytest.raises(
        ArianeError, match=r"^journeys failed 8 times in a row: Spark: Python worker exited unexpectedly \(crashed\)$"
    ):
        restarts.retry_transient("journeys", work, stop, lambda _: None)
    assert work.calls == restarts.MAX_FAILURES


def test_workers_that_start_slowly_are_no_failures_of_the_work() -> None:
    stop = Stop()
    assert restarts.retry_transient("journeys", Failing(20), stop, lambda _: None) == 21
    backoff = restarts.RestartBackoff("journeys")
    for _ in range(restarts.MAX_SLOW_STARTS - 1):
        backoff.record_failure(restarts.SLOW_START)
    assert backoff.record_failure("Python worker exited unexpectedly (crashed)") == 5, "counted separately"
    with pytest.raises(ArianeError, match="journeys failed 30 times in a row: Python worker failed to connect back"):
        backoff.record_failure(restarts.SLOW_START)


def test_a_permanent_error_is_raised_immediately() -> None:
    stop, work = Stop(), Failing(1, "No space left on device")
    with pytest.raises(RuntimeError, match="No space"):
        restarts.retry_transient("journeys", work, stop, lambda _: None)
    assert (work.calls, stop.waited) == (1, [])


def test_a_stopping_job_retries_nothing() -> None:
    stop, work = Stop(), Failing(100)
    stop.set()
    with pytest.raises(RuntimeError):
        restarts.retry_transient("journeys", work, stop, lambda _: None)
    assert work.calls == 1


def test_a_success_resets_the_delays() -> None:
    backoff = restarts.RestartBackoff("traces")
    assert [backoff.record_failure("x"), backoff.record_failure("x")] == [5, 10]
    backoff.reset()
    assert backoff.record_failure("x") == 5


def test_an_error_of_spark_is_one_line_and_its_traceback_is_in_the_log(tmp_path: Path) -> None:
    errors = pytest.importorskip("pyspark.errors", reason="needs pyspark: pip install 'ariane[spark]'")
    log = tmp_path / "spark.log"
    log.write_text("greeting\n")
    text = (
        "An error occurred while calling o7.start.\n: java.lang.IllegalArgumentException: 4x is no size\n\tat a.b.C\n"
    )
    with pytest.raises(ArianeError) as failed, restarts.single_line_errors(log, threading.Event()):
        raise errors.PySparkException(text)
    why = "java.lang.IllegalArgumentException: 4x is no size"
    assert str(failed.value) == f"Spark failed: {why}; see {log} for the whole error"
    assert log.read_text().startswith("greeting\nTraceback")
    assert "at a.b.C" in log.read_text()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "StandaloneSchedulerBackend: Application has been killed. Reason: Master removed our application: KILLED",
            "Master removed our application: KILLED",
        ),
        (
            "StandaloneSchedulerBackend: Application has been killed. Reason: All masters are unresponsive! Giving up.",
            "All masters are unresponsive! Giving up.",
        ),
        (
            "YarnClientSchedulerBackend: YARN application has exited unexpectedly with state KILLED! Check the logs.",
            "YARN application has exited unexpectedly with state KILLED! Check the logs.",
        ),
    ],
)
def test_the_reason_why_the_cluster_removed_the_application_is_reported(line: str, reason: str, tmp_path: Path) -> None:
    errors = pytest.importorskip("pyspark.errors", reason="needs pyspark: pip install 'ariane[spark]'")
    log = tmp_path / "spark.log"
    log.write_text(f"greeting\n26/01/01 10:00:00 ERROR {line}\norg.apache.spark.SparkException: Exiting\n")
    consequence = (
        "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext …"
    )
    with pytest.raises(ArianeError) as failed, restarts.single_line_errors(log, threading.Event()):
        raise errors.PySparkException(consequence)
    assert str(failed.value) == f"Spark failed: {reason}; see {log} for the whole error"


def test_a_jvm_that_ends_while_the_jobs_stop_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
    stop = threading.Event()
    stop.set()
    with (
        pytest.raises(ArianeError, match="Spark ended while the jobs were stopping"),
        restarts.single_line_errors(tmp_path / "l", stop),
    ):
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("home", "x", "y"),
        ValueError("a fault of ours"),
        BrokenPipeError(32, "the reader of our output ended"),
    ],
)
def test_errors_that_are_not_of_spark_are_unchanged(error: Exception, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
    with pytest.raises(type(error)) as raised, restarts.single_line_errors(tmp_path / "l", threading.Event()):
        raise error
    assert raised.value is error
    assert not (tmp_path / "l").exists()


def test_a_broken_pipe_to_the_jvm_is_an_error_of_spark(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'ariane[spark]'")
    namespace = {"__name__": "py4j.clientserver"}
    exec("def send():\n    raise BrokenPipeError(32, 'Broken pipe')", namespace)
    with (
        pytest.raises(ArianeError, match="Spark failed"),
        restarts.single_line_errors(tmp_path / "l", threading.Event()),
    ):
        namespace["send"]()


class Query:
    """A query that has ended, with this error."""

    name = "traces"
    isActive = False
    name = "traces"

    def __init__(self, error: str | None) -> None:
        self._error = error

    def exception(self) -> Any:
        return None if self._error is None else RuntimeError(self._error)

    def awaitTermination(self, seconds: float) -> bool:
        return True


def test_a_query_ended_by_a_transient_error_is_restarted_until_it_completes() -> None:
    source_reader = pytest.importorskip(
        "ariane.pipeline.source_reader", reason="needs pyspark: pip install 'ariane[spark]'"
    )
    queries = [Query(WORKER), Query(WORKER), Query(None)]
    stop, output = Stop(), list[str]()
    started = iter([source_reader.RunningQuery(query, 1) for query in queries])
    reading = source_reader._read_to_end(
        next(started), lambda: next(started), restarts.RestartBackoff("traces"), stop, output.append
    )
    assert reading.query is queries[2]
    assert stop.waited == [5, 10]
    assert output[1] == "traces failed: Spark: Python worker failed to connect back; retrying in 10 s"
    assert source_reader._unavailable_reason(Query(WORKER)) == "Spark: Python worker failed to connect back"


def test_a_query_starts_after_the_python_process_of_the_one_before() -> None:
    source_reader = pytest.importorskip(
        "ariane.pipeline.source_reader", reason="needs pyspark: pip install 'ariane[spark]'"
    )

    class Starting(Query):
        isActive = True

        def __init__(self, *messages: str) -> None:
            super().__init__(None)
            self._messages = list(messages)

        @property
        def status(self) -> dict[str, Any]:
            return {"message": self._messages.pop(0) if len(self._messages) > 1 else self._messages[0]}

    def waited(query: Query) -> int:
        stop, reader = Stop(), source_reader.SourceReader.__new__(source_reader.SourceReader)
        reader.running = source_reader.RunningQuery(query, None)
        reader.await_start(stop)
        return len(stop.waited)

    first = "Initializing sources"
    assert waited(Starting("Initializing StreamExecution", first, first, "Getting offsets from T")) == 3
    assert waited(Starting(first)) == source_reader.START_POLLS, (
        "a start that hangs delays the others, but not for ever"
    )
    assert waited(Query("failed at the start")) == 0


def test_unresponsive_servers_are_not_an_error_of_the_job() -> None:
    """Spark prints a connector error with a traceback or, if that is hidden, within its own line."""
    source_reader = pytest.importorskip(
        "ariane.pipeline.source_reader", reason="needs pyspark: pip install 'ariane[spark]'"
    )
    text = "ServerUnavailable: routes: connection to 127.0.0.1:1: refused (tried 1 times)"
    hidden = f"[STREAMING_ERROR] Failed when the source perform prepareForTriggerAvailableNow: ariane.errors.{text}\nSQLSTATE"
    shown = f"Traceback:\n  File x\nariane.errors.{text}\n"
    assert source_reader._unavailable_reason(Query(hidden)) == source_reader._unavailable_reason(Query(shown)) == text
    with pytest.raises(ArianeError, match="ConfigError: topic: none"):
        source_reader._unavailable_reason(Query("Failed when it reads: ariane.errors.ConfigError: topic: none\n"))


def test_user_settings_replace_the_defaults_and_java_options_are_appended() -> None:
    ours = {"spark.a": "1", JAVA_OPTIONS: "-Xours"}
    assert _merge_settings(ours, {"spark.a": "2", JAVA_OPTIONS: "-Xtheirs"}) == {
        "spark.a": "2",
        JAVA_OPTIONS: "-Xours -Xtheirs",
    }
    assert _merge_settings(ours, {}) == ours
    with pytest.raises(ConfigError, match=r"spark\.sql\.session\.timeZone = 'CET': tables are in UTC"):
        _merge_settings(ours, {"spark.sql.session.timeZone": "CET"})
