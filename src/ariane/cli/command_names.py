"""The names of commands, reports and jobs. Needs only the standard library, so `./ariane` checks them before it installs anything.

python -m ariane.cli.command_names pipeline run nothing    prints what is wrong, exit status 2
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence

from ariane.errors import UsageError

ALL = "all"

COMMANDS = {
    "up": "name server and broker on this machine, a demo",
    "namesrv": "one name server",
    "broker": "one broker",
    "trace": "where a message is",
    "report": "throughput, latency, lag, health, delays, transactions",
    "pipeline": "Spark jobs: topics to tables",
    "collect": "samples of all brokers",
    "archive": "whole messages as Parquet",
    "replay": "send messages again",
    "store": "check and read a store directory",
}
# Of the script `./ariane` only.
SCRIPT_COMMANDS = {"install": "install only", "test": "run the test suite"}

JOBS = {
    "trace": "message traces → journeys of messages",
    "traffic": "message traces → rates, latencies, the slowest messages",
    "lag": "samples of all brokers → true TPS and lag of groups",
    "health": "traces and messages → duplicates, disorder, dead letters",
    "delay": "delayed messages → asked against real delivery times",
    "transactions": "half messages, their checks and ends → transactions",
}
REPORTS = {
    "tps": "messages sent and consumed per second, failures",
    "latency": "how long sends, queueing and listeners take",
    "lag": "lag and true TPS of groups, and which brokers serve them",
    "health": "duplicates, disorder, clocks, lost and dead messages",
    "delay": "delayed messages: how early or late, pending, overdue",
    "transactions": "half messages, their decisions and checks, open ones",
}


def parse_jobs(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the jobs that a command line names, `all` expanded, each once.

    Raises:
        UsageError: no job is named, or one that does not exist. Lists them.
    """
    if not names:
        raise UsageError("JOB", None, f"name one or more jobs:{_listed({**JOBS, ALL: 'all of them'})}")
    for name in names:
        if name not in JOBS and name != ALL:
            raise UsageError("JOB", name, _unknown("job", name, {**JOBS, ALL: "all of them"}))
    return tuple(JOBS) if ALL in names else tuple(dict.fromkeys(names))


def parse_report(name: str | None) -> str:
    """Return the name of a report.

    Raises:
        UsageError: no report is named, or one that does not exist. Lists them.
    """
    if name is None:
        raise UsageError("NAME", None, f"name a report:{_listed(REPORTS)}")
    if name not in REPORTS:
        raise UsageError("NAME", name, _unknown("report", name, REPORTS))
    return name


def check(arguments: Sequence[str]) -> None:
    """Check the names that stand before the first option; those after it are checked by the command itself."""
    words = list(_before_options(arguments))
    if not words:
        return
    known = {**COMMANDS, **SCRIPT_COMMANDS}
    if words[0] not in known:
        raise UsageError("COMMAND", words[0], _unknown("command", words[0], known))
    if words[:2] == ["pipeline", "run"] and len(words) > 2:
        parse_jobs(words[2:])
    if words[0] == "report" and len(words) > 1:
        parse_report(words[1])


def _before_options(arguments: Iterable[str]) -> Iterable[str]:
    for word in arguments:
        if word.startswith("-"):
            return
        yield word


def _unknown(what: str, name: str, known: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"no such {what}.{hint} The {what}s are:{_listed(known)}"


def _listed(meanings: Mapping[str, str]) -> str:
    return "".join(f"\n  {name:14} {meaning}" for name, meaning in meanings.items())


if __name__ == "__main__":
    try:
        check(sys.argv[1:])
    except UsageError as error:
        print(f"ariane: {error}", file=sys.stderr)
        sys.exit(2)
