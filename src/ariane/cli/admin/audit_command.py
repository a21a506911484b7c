"""`ariane audit`: the audit logs of brokers and name servers, by request or from their files."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ariane.cli.admin.admin_session import AdminSession, BrokerChoice
from ariane.cli.options.option_kinds import flag_option, number_option, path_option, text_option, time_option
from ariane.cli.options.shared_options import FILTERS, OUTPUT
from ariane.cli.options.time_options import parse_time
from ariane.cli.output.value_format import escape_control
from ariane.clock import SYSTEM_CLOCK
from ariane.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from ariane.cluster.admin import Admin
    from ariane.cluster.connection import Answers, BrokerServer, BrokerUnavailable
    from ariane.protocol.requests.audit import AuditRecord, GetAuditLog

COLUMNS = 80
INDENT = "    "
FOLLOW_INTERVAL_S = 2.0
FOLLOW_PAGE = 1_000


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Options that select records."""

    since: Annotated[
        str | None,
        time_option(help="Since: a duration before now (15m, 2d) or a UTC time (2026-11-21T10:00).", panel=FILTERS),
    ] = None
    until: Annotated[str | None, time_option(help="Before, in the same forms.", panel=FILTERS)] = None
    account: Annotated[str | None, text_option(metavar="ACCOUNT", help="Access key of the request.", panel=FILTERS)] = (
        None
    )
    address: Annotated[
        str | None, text_option(metavar="ADDR", help="Beginning of the client's address.", panel=FILTERS)
    ] = None
    request: Annotated[
        str | None, text_option(metavar="CODE", help="Request code: its name or number.", panel=FILTERS)
    ] = None
    resource: Annotated[
        str | None, text_option(metavar="TEXT", help="Part of the resource, such as topic:orders.", panel=FILTERS)
    ] = None
    result: Annotated[
        str | None, text_option(metavar="RESULT", help="Result: done, failed, refused, unknown or lost.", panel=FILTERS)
    ] = None

    def parse(self) -> GetAuditLog:
        """Return the selection of a request.

        Raises:
            UsageError: a time or the result is invalid.
        """
        from ariane.protocol.requests.audit import RESULTS, GetAuditLog

        if self.result is not None and self.result not in RESULTS:
            raise UsageError("--result", self.result, f"expected one of {', '.join(RESULTS)}")
        now_ms = SYSTEM_CLOCK.now_ms()
        return GetAuditLog(
            since_ms=0 if self.since is None else parse_time(self.since, now_ms, "--since"),
            until_ms=0 if self.until is None else parse_time(self.until, now_ms, "--until"),
            account=self.account or "",
            address=self.address or "",
            request=self.request or "",
            resource=self.resource or "",
            result=self.result or "",
        )


def audit(
    *,
    brokers: BrokerChoice,
    of_name_servers: Annotated[
        bool, typer.Option("--name-servers", help="Name servers instead of brokers.", show_default=False)
    ] = False,
    directory: Annotated[
        Path | None, path_option(metavar="DIR", help="Read the files of a server on this machine instead.")
    ] = None,
    selection: AuditFilter,
    limit: Annotated[
        int, number_option("-l", "--limit", minimum=1, help="Newest records of each server.", panel=OUTPUT)
    ] = 100,
    follow: Annotated[
        bool, flag_option("--follow", "Print new records until Ctrl-C.", short="-f", panel=OUTPUT)
    ] = False,
    session: AdminSession,
) -> None:
    """Print who changed what on servers, and refused requests.

    Works with brokers and name servers. Requires an account with admin rights, or the files. The oldest record comes first.
    """
    from ariane.cluster.connection import BrokerServer

    chosen = selection.parse()
    if directory is not None:
        if follow or of_name_servers or brokers.is_given:
            raise UsageError("--directory", str(directory), "cannot be combined with --follow or a choice of servers")
        _print(session, _read_files(directory, chosen, limit))
        return

    async def servers(admin: Admin) -> Sequence[BrokerServer]:
        if of_name_servers:
            return [BrokerServer("", "name server", 0, addr) for addr in admin.name_servers]
        return await brokers.select(admin, with_slaves=True)

    async def work(admin: Admin) -> Answers[list[AuditRecord]]:
        return await admin.audit_records(await servers(admin), chosen, limit=limit)

    async def follow_records(admin: Admin) -> None:
        async for records, unavailable in _new_records(admin, await servers(admin), chosen, limit):
            _print(session, records)
            for missing in unavailable:
                typer.echo(str(missing), err=True)

    if follow:
        session.read(follow_records)
        return
    answers = session.read(work)
    _print(session, [record for _, records in answers.values for record in records])
    if omitted := [server.broker or server.addr for server, records in answers.values if len(records) == limit]:
        typer.echo(f"only the newest {limit} records of {', '.join(omitted)}; raise --limit to see more", err=True)
    session.finish(answers.unavailable)


def _read_files(directory: Path, selection: GetAuditLog, limit: int) -> list[AuditRecord]:
    import msgspec

    from ariane.audit.record_files import CHANGES_FILE, REFUSED_FILE, audit_files, read_page

    files = audit_files(directory, files_max=1_000)
    if not any(part.path.exists() for part in files):
        raise ConfigError("--directory", str(directory), f"no {CHANGES_FILE} or {REFUSED_FILE} in this directory")
    records: list[AuditRecord] = []
    while len(records) < limit:
        page = read_page(files, msgspec.structs.replace(selection, size=limit - len(records)))
        records += page.records
        selection = msgspec.structs.replace(selection, before=page.before)
        if not page.before:
            break
    return records


async def _new_records(
    admin: Admin, servers: Sequence[BrokerServer], selection: GetAuditLog, limit: int
) -> AsyncIterator[tuple[list[AuditRecord], list[BrokerUnavailable]]]:
    """Yield the newest records, then those that are added, and servers that did not respond when that changes."""
    import msgspec

    newest: dict[BrokerServer, int] = {}
    reported: set[BrokerUnavailable] = set()
    while True:
        records: list[AuditRecord] = []
        missing: set[BrokerUnavailable] = set()
        for server in servers:
            after = msgspec.structs.replace(selection, after=newest.get(server, 0))
            answers = await admin.audit_records([server], after, limit=FOLLOW_PAGE if server in newest else limit)
            missing.update(answers.unavailable)
            for _, part in answers.values:
                newest[server] = max([newest.get(server, 0), *(record.number for record in part)])
                records += part
        yield records, sorted(missing - reported)
        reported = missing
        await asyncio.sleep(FOLLOW_INTERVAL_S)


def _print(session: AdminSession, records: Iterable[AuditRecord]) -> None:
    ordered = sorted(records, key=lambda record: (record.time_ms, record.server, record.number))
    if session.as_json:
        from msgspec import json

        for record in ordered:  # a line each, as in the files
            typer.echo(json.encode(record).decode())
        return
    for record in ordered:
        for line in record_lines(record):
            typer.echo(line)


def record_lines(record: AuditRecord) -> list[str]:
    """Return a record as lines of 80 columns: time, server and request; then who, and why."""
    time = datetime.fromtimestamp(record.time_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    count = f" ×{record.count}" if record.count > 1 else ""
    head = f"{time.removesuffix('+00:00')}Z {record.server} #{record.number} {record.result}{count} {record.request}"
    proof = f" ({record.proof})" if record.proof else " (not proven)" if record.account else ""
    who = f"{record.account or 'no account'}{proof}" + (f" from {record.address}" if record.address else "")
    certificate = f"certificate {record.certificate}" if record.certificate else ""
    parts = [head, record.resource, who, certificate, record.reason]
    lines = []
    for number, part in enumerate(filter(None, map(escape_control, parts))):
        indent = INDENT if number else ""
        lines += textwrap.wrap(
            part,
            COLUMNS,
            initial_indent=indent,
            subsequent_indent=INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
