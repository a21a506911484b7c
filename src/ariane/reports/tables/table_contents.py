"""Contents of the pipeline's tables and sources in words, for warnings, and the commands that supply them."""

from __future__ import annotations

from ariane.reports.texts import Text, text
from ariane.tables import TableSchema

PIPELINE = "ariane pipeline run"
PIPELINE_NEEDS = "needs Spark: Java 17 or newer, and pip install 'ariane[spark]'"

# Table: its contents in the plural, and the job that computes it; the archive has a command of its own.
CONTENTS = {
    "trace_events": (text("message traces"), "trace"),
    "trace_rejects": (text("unreadable message traces"), "trace"),
    "messages": (text("headers of messages"), "health"),
    "samples_brokers": (text("samples of brokers"), "lag"),
    "samples_queues": (text("samples of queues"), "lag"),
    "samples_counters": (text("samples of counters"), "lag"),
    "samples_rejects": (text("unreadable samples"), "lag"),
    "archive": (text("archived messages"), None),
    "record_positions": (text("positions of records"), "delay"),
    "position_marks": (text("marks of records"), "delay"),
    "clocks": (text("clock offsets of clients"), "trace"),
    "journeys": (text("journeys of messages"), "trace"),
    "message_keys": (text("keys of messages"), "trace"),
    "traffic": (text("rates and latencies"), "traffic"),
    "latencies": (text("latencies of long time ranges"), "traffic"),
    "slow_messages": (text("slowest messages"), "traffic"),
    "consumption": (text("lag and rates of groups"), "lag"),
    "health": (text("findings about messages"), "health"),
    "delays": (text("deliveries of delayed messages"), "delay"),
    "transactions": (text("decisions of transactions"), "transactions"),
}
SOURCES = {
    "traces": text("message traces"),
    "samples": text("samples of brokers and queues"),
    "messages": text("messages of the brokers"),
}


def no_data(table: TableSchema) -> Text:
    """Return the warning that a table has no data."""
    contents, job = _contents(table)
    command = "ariane archive" if job is None else f"{PIPELINE} {job}"
    return text(
        "no %(contents)s yet: `%(command)s` supplies them (needs Spark and Java 17 or newer)",
        contents=contents,
        command=command,
    )


def outdated(table: TableSchema, source: TableSchema) -> Text:
    """Return the warning that a table lacks the newest rows of the table from which it is computed."""
    return text(
        "%(contents)s do not include the newest %(source)s yet",
        contents=_contents(table)[0],
        source=_contents(source)[0],
    )


def source_contents(source: str) -> Text:
    """Return what a source of the pipeline reads."""
    return SOURCES.get(source) or text("messages of `%(source)s`", source=source)


def _contents(table: TableSchema) -> tuple[Text, str | None]:
    # Tables of other programs have no words of their own.
    return CONTENTS.get(table.name) or (text("rows of `%(table)s`", table=table.name), "all")
