"""Names of commands, reports and jobs, with suggestions for misspelt ones.

Uses the standard library only: the script `./ariane` checks names with it before it installs anything. Exit status 2: unknown name.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence

from ariane.errors import UsageError

ALL = "all"

COMMANDS = {
    "up": "run a name server, a broker and the web console on this machine",
    "console": "run the web console of a cluster",
    "namesrv": "run a name server",
    "proxy": "serve clients of RocketMQ 5 in front of a cluster",
    "tls": "create, show and check certificates of servers",
    "backup": "back up store directories while their brokers run",
    "restore": "create a store directory from a backup",
    "broker": "run a broker, or administer one",
    "topic": "create, change, list and delete topics",
    "cluster": "print the state of all servers",
    "admin": "run a command of mqadmin",
    "group": "manage consumer groups, print their lag and clients",
    "offset": "print and move the offsets of consumer groups",
    "acl": "manage accounts, users and policies of access control",
    "audit": "print who changed what on servers, and refused requests",
    "doctor": "check a cluster for faults and name the fixes",
    "bench": "measure throughput and latency of a cluster",
    "cat": "print the messages of a topic, or send standard input",
    "message": "show, search, send, resend and track messages",
    "dead-letter": "browse dead letters and resend them",
    "delayed": "list pending delayed messages and cancel them",
    "transaction": "list open transactions and resume their checks",
    "trace": "print the timeline of messages",
    "report": "print a report: tps, latency, lag, health, delay, transactions",
    "pipeline": "run Spark jobs that compute tables from topics",
    "collect": "poll statistics of all brokers",
    "exporter": "serve the metrics of a cluster to Prometheus",
    "archive": "archive messages as Parquet files",
    "replay": "resend archived or dead-letter messages",
    "store": "check and print a store directory",
}
# Commands of the script `./ariane`, which the Python program does not have.
SCRIPT_COMMANDS = {"install": "install dependencies only", "test": "run the test suite"}

JOBS = {
    "trace": "message traces to journeys of messages",
    "traffic": "message traces to rates, latencies and the slowest messages",
    "lag": "broker statistics to true TPS and lag of groups",
    "health": "traces and messages to duplicates, disorder and dead letters",
    "delay": "delayed messages to requested and actual delivery times",
    "transactions": "half messages, checks and decisions to transactions",
}
# Jobs that send tables elsewhere: they need an address, so `all` does not include them.
EXPORT_JOBS = {"otel": "journeys of messages to an OpenTelemetry collector"}
JOB_CHOICES = {**JOBS, ALL: "all of these jobs", **EXPORT_JOBS}
REPORTS = {
    "tps": "messages sent and consumed per second, failures",
    "latency": "duration of sends, queueing and consumption",
    "lag": "lag and true TPS of consumer groups, state of brokers",
    "health": "duplicates, disorder, clock errors, lost and dead messages",
    "delay": "punctuality of delayed messages; pending and overdue ones",
    "transactions": "transactions by decision, checks, open transactions",
}


def parse_jobs(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the jobs named on a command line, without duplicates; `all` stands for every job except exports.

    Raises:
        UsageError: no job is given, or an unknown one. Lists all jobs.
    """
    if not names:
        raise UsageError("JOB", None, f"expected one or more jobs:{_format_list(JOB_CHOICES)}")
    for name in names:
        if name not in JOB_CHOICES:
            raise UsageError("JOB", name, _unknown_name("job", name, JOB_CHOICES))
    selected = [*JOBS, *names] if ALL in names else names
    return tuple(dict.fromkeys(name for name in selected if name != ALL))


def parse_report(name: str | None) -> str:
    """Return the name of a report.

    Raises:
        UsageError: no report is given, or an unknown one. Lists all reports.
    """
    if name is None:
        raise UsageError("NAME", None, f"expected a report:{_format_list(REPORTS)}")
    if name not in REPORTS:
        raise UsageError("NAME", name, _unknown_name("report", name, REPORTS))
    return name


def check(arguments: Sequence[str]) -> None:
    """Check the names before the first option; the command itself checks the rest.

    Raises:
        UsageError: a command, job or report is unknown.
    """
    words = list(_before_options(arguments))
    if not words:
        return
    commands = {**COMMANDS, **SCRIPT_COMMANDS}
    if words[0] not in commands:
        raise UsageError("COMMAND", words[0], _unknown_name("command", words[0], commands))
    # Names that decide what `./ariane` installs are checked before it does.
    if words[:2] == ["pipeline", "run"] and len(words) > 2:
        parse_jobs(words[2:])
    if words[0] == "report" and len(words) > 1:
        parse_report(words[1])


def _before_options(arguments: Iterable[str]) -> Iterable[str]:
    for word in arguments:
        if word.startswith("-"):
            return
        yield word


def _unknown_name(kind: str, name: str, choices: Mapping[str, str]) -> str:
    matches = difflib.get_close_matches(name, choices, 1)
    hint = f" Did you mean {matches[0]!r}?" if matches else ""
    return f"unknown {kind}.{hint} Expected one of:{_format_list(choices)}"


def _format_list(choices: Mapping[str, str]) -> str:
    return "".join(f"\n  {name:14} {meaning}" for name, meaning in choices.items())


if __name__ == "__main__":
    try:
        check(sys.argv[1:])
    except UsageError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
