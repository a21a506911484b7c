"""The audit log of a server: records of changes and refusals, written by a thread and read by GET_AUDIT_LOG.

    with_records ─ each answered change ─┐
    refused ─ each refused request ──────┴▶ buffer ─▶ thread: append, fsync ─▶ audit.jsonl, audit_refused.jsonl

A request never waits for its record. Records are written as soon as the thread has written those before, usually within some
milliseconds; a crash loses the records of that time, and `number` shows the gap. While the disk fails, records are retained in
memory and written again every second. Beyond PENDING_MAX they are counted, and the count is recorded. Refusals have files of their
own: a flood of them rotates no change away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from ariane.audit import record_lines
from ariane.audit.audited_requests import CHANGES, resource_of
from ariane.audit.line_files import PRIVATE_DIRECTORY
from ariane.audit.record_files import audit_files, last_number, read_page
from ariane.audit.records import LIMITS, NAME_MAX, RequestAccount
from ariane.audit.refusal_limits import RefusalLimits, Sender
from ariane.clock import Clock
from ariane.errors import ConfigError, ReplyError
from ariane.net.peer_log import REPEAT_S, PeerLog
from ariane.net.replies import Handler, HandlerResult, LateReply, Peer, Reply
from ariane.protocol.codes import ResponseCode, code_name
from ariane.protocol.command import Command
from ariane.protocol.requests.audit import DONE, FAILED, LOST, REFUSED, UNKNOWN, AuditPage, AuditRecord, GetAuditLog
from ariane.protocol.signing import ACCESS_KEY

log = logging.getLogger("ariane.audit")

PENDING_MAX = 20_000  # records that wait for the disk: some 10 MB
RETRY_S = 1.0  # after a failure of the disk
DRAIN_INTERVAL_S = 10.0  # of looking for counts of refusals that are due
CLOSE_S = 5.0  # for the last records

# In the place of a request, of a connection that is refused, and of a slave.
CONNECTION, REPLICATION = "CONNECTION", "REPLICATION"

Condition = Callable[[Command, Peer], bool]


class AuditOptions(Protocol):
    """Settings of the audit log. [AuditSettings]"""

    @property
    def audit_log_path(self) -> str: ...
    @property
    def audit_log_file_size(self) -> int: ...
    @property
    def audit_log_files(self) -> int: ...

    def has_audit_log(self, *, acl_enable: bool) -> bool:
        """Return whether the server has an audit log."""
        ...


class AuditState(NamedTuple):
    """What an audit log has not written.

    Attributes:
        failures: Writes that failed since the start; each is repeated.
        pending: Records that wait for the disk.
        lost: Records that were lost, because too many waited.
    """

    failures: int
    pending: int
    lost: int

    def describe(self) -> str:
        """Return the failures in one line; empty without any."""
        if not self.failures:
            return ""
        return f"{self.failures} writes failed since its start, {self.pending} records wait, {self.lost} are lost"


class Identification(Protocol):
    """Finds out whose a request is. [AccessControl]"""

    def identity(self, command: Command, peer: Peer) -> RequestAccount:
        """Return the account of a request."""
        ...


class ServerAuditLog:
    """Records what peers change, and what they are refused.

    Args:
        directory: Where the files are; created if it does not exist.
        server: Name of the server in records.
        file_bytes_max: Size from which a new file is started.
        files_max: Files of changes, and files of refusals, that are retained.
        clock: Wall and monotonic clock.

    Raises:
        OSError: the files cannot be read.
    """

    def __init__(self, directory: Path, server: str, *, file_bytes_max: int, files_max: int, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._changes, self._refused = audit_files(directory, file_bytes_max, files_max)
        self._failure_log = PeerLog(log, lines=1, window_s=REPEAT_S)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ariane-audit")
        self._number = last_number((self._changes, self._refused))  # of the last record
        self._pending: list[AuditRecord] = []  # records that no write has begun for
        self._write: asyncio.Future[_Written] | None = None  # in progress
        self._writing = 0  # records of this write
        self._retry: asyncio.TimerHandle | None = None  # the next write, after one that failed
        self._unreported = 0  # lost records that no record counts yet
        self._lost = 0  # records beyond PENDING_MAX
        self._limits = RefusalLimits()
        self._failures = 0  # writes that failed
        # Whose requests are; None without access control.
        self.identification: Identification | None = None

    @property
    def state(self) -> AuditState:
        """What is not written."""
        return AuditState(self._failures, self._writing + len(self._pending), self._lost)

    # --- records ---

    def with_records(
        self, handlers: Mapping[int, Handler], conditions: Mapping[int, Condition] | None = None
    ) -> dict[int, Handler]:
        """Return handlers whose changes are recorded when they are answered.

        Args:
            handlers: By request code.
            conditions: Codes that are recorded only if a function returns true, before the change.
        """
        conditions = conditions or {}
        return {
            code: self._recorded(serve, conditions.get(code)) if code in CHANGES else serve
            for code, serve in handlers.items()
        }

    def refused(self, command: Command, peer: Peer, reason: str) -> None:
        """Record a request that was refused before it reached its handler."""
        self._record_limited(command, peer, REFUSED, reason)

    def refused_connection(self, peer: Peer, reason: str) -> None:
        """Record a connection that was closed when it was opened."""
        if self._permits(Sender(peer.ip, "", CONNECTION, REFUSED)):
            self._append(self._new(CONNECTION, REFUSED, address=peer.addr, reason=reason))

    def refused_slave(self, ip: str, addr: str, account: str, reason: str) -> None:
        """Record a slave that did not prove the account which it needs to replicate this broker."""
        if self._permits(Sender(ip, record_lines.cut(account, NAME_MAX), REPLICATION, REFUSED)):
            self._append(self._new(REPLICATION, REFUSED, account=account, address=addr, reason=reason))

    async def record_due_counts(self) -> None:
        """Record how many requests had no record of their own, once a minute."""
        if self._limits.is_over(self._clock.monotonic()):
            self._record_counts()

    def _recorded(self, serve: Handler, condition: Condition | None) -> Handler:
        def recorded(command: Command, peer: Peer) -> HandlerResult:
            if condition is not None and not condition(command, peer):
                return serve(command, peer)
            try:
                handled = serve(command, peer)
            except Exception as error:
                self._answered(command, peer, error)
                raise
            if handled is None or isinstance(handled, Reply):
                self._answered(command, peer, handled)
                return handled
            return self._when_answered(command, peer, handled)

        return recorded

    async def _when_answered(
        self, command: Command, peer: Peer, handled: Awaitable[Reply | LateReply | None]
    ) -> Reply | LateReply | None:
        try:
            reply = await handled
        except BaseException as error:
            self._answered(command, peer, error)
            raise
        self._answered(command, peer, reply)
        return reply

    def _answered(self, command: Command, peer: Peer, outcome: Reply | LateReply | BaseException | None) -> None:
        if isinstance(outcome, asyncio.CancelledError):
            self._record(command, peer, UNKNOWN, "the connection closed before the answer")
        elif isinstance(outcome, BaseException):
            self._failed(command, peer, (outcome.remark or "") if isinstance(outcome, ReplyError) else str(outcome))
        elif isinstance(outcome, Reply) and outcome.code != ResponseCode.SUCCESS:
            self._failed(command, peer, outcome.remark or f"response code {outcome.code}")
        else:
            self._record(command, peer, DONE, (outcome.remark or "") if isinstance(outcome, Reply) else "")

    def _failed(self, command: Command, peer: Peer, reason: str) -> None:
        # Changes by proven accounts have a record each, whatever their result.
        record = self._record if self._identity(command, peer).proof else self._record_limited
        record(command, peer, FAILED, reason)

    def _record_limited(self, command: Command, peer: Peer, result: str, reason: str) -> None:
        # The account that the request names: signatures are verified for records only, not for each request of a flood.
        account = command.field_map().get(ACCESS_KEY) or " ".join(peer.names)
        sender = Sender(peer.ip, record_lines.cut(account, NAME_MAX), code_name(command.code), result)
        if self._permits(sender):
            self._record(command, peer, result, reason)

    def _permits(self, sender: Sender) -> bool:
        now_s = self._clock.monotonic()
        if self._limits.is_over(now_s):
            self._record_counts()
        return self._limits.permits(sender, now_s)

    def _record(self, command: Command, peer: Peer, result: str, reason: str) -> None:
        account, proof = self._identity(command, peer)
        record = self._new(
            code_name(command.code), result, resource=resource_of(command.code, command.field_map(), command.body),
            account=account, proof=proof, certificate=" ".join(peer.names), address=peer.addr, reason=reason,
        )  # fmt: skip
        self._append(record)

    def _identity(self, command: Command, peer: Peer) -> RequestAccount:
        if self.identification is None:
            return RequestAccount(command.field_map().get(ACCESS_KEY, ""))
        return self.identification.identity(command, peer)

    def _record_counts(self) -> None:
        for sender, count in self._limits.drain():
            whose = "of this account" if sender.request else "of this address" if sender.ip else "of all senders"
            self._append(
                self._new(
                    sender.request, sender.result or REFUSED, account=sender.account, address=sender.ip,
                    reason=f"{count} more requests {whose} within a minute have no record of their own", count=count,
                )
            )  # fmt: skip

    def _new(self, request: str, result: str, **members: object) -> AuditRecord:
        self._number += 1
        return AuditRecord(
            number=self._number, time_ms=self._clock.now_ms(), server=self._server, request=request, result=result,
            **members,  # type: ignore[arg-type]
        )  # fmt: skip

    # --- writing ---

    async def close(self) -> None:
        """Record the counts, and wait for the last records, at most CLOSE_S."""
        self._record_counts()
        try:
            async with asyncio.timeout(CLOSE_S):
                while self._write is not None or self._pending:
                    await (asyncio.sleep(RETRY_S / 10) if self._write is None else asyncio.wait({self._write}))
        except TimeoutError:
            log.error(
                "Audit log: %d records are lost, the disk did not take them in %.0f s", len(self._pending), CLOSE_S
            )
        if self._retry is not None:
            self._retry.cancel()
        self._executor.shutdown(wait=False)

    def _append(self, record: AuditRecord) -> None:
        if len(self._pending) >= PENDING_MAX:
            self._unreported += 1
            self._lost += 1
            return
        self._pending.append(record_lines.bounded(record, LIMITS))
        if self._retry is None:
            self._begin_write()

    def _begin_write(self) -> None:
        self._retry = None
        if self._write is not None or not self._pending:
            return
        batch, self._pending = self._pending, []
        if self._unreported:
            reason = f"{self._unreported} records were lost while the disk failed"
            batch.append(self._new("", LOST, reason=reason, count=self._unreported))
            self._unreported = 0
        self._writing = len(batch)
        self._write = asyncio.get_running_loop().run_in_executor(self._executor, self._write_batch, batch)
        self._write.add_done_callback(self._on_written)

    def _write_batch(self, batch: Sequence[AuditRecord]) -> _Written:
        """Append records to their files. Runs in the thread."""
        unwritten: list[AuditRecord] = []
        failure = None
        for files, part in (
            (self._changes, [record for record in batch if not _is_refusal(record)]),
            (self._refused, [record for record in batch if _is_refusal(record)]),
        ):
            try:
                if part:
                    files.append(b"".join(map(record_lines.encode, part)))
            except OSError as error:
                unwritten += part
                failure = error
        return _Written(unwritten, failure)

    def _on_written(self, done: asyncio.Future[_Written]) -> None:
        self._write, self._writing = None, 0
        unwritten, failure = done.result()
        if failure is None:
            self._begin_write()
            return
        self._failures += 1
        self._pending = sorted([*unwritten, *self._pending], key=lambda record: record.number)
        loop = asyncio.get_running_loop()
        text = "Audit log cannot be written, %d records wait in memory: %s"
        self._failure_log.error(str(self._changes.path), loop.time(), text, len(self._pending), failure)
        self._retry = loop.call_later(RETRY_S, self._begin_write)

    # --- reading ---

    async def read(self, selection: GetAuditLog) -> AuditPage:
        """Return a page of records, with those of all requests that were answered before."""
        for _ in range(2):  # the write in progress, and one with the records that were pending
            if self._write is not None:
                await asyncio.wait({self._write})
        read = asyncio.get_running_loop().run_in_executor
        return await read(self._executor, read_page, (self._changes, self._refused), selection)


class _Written(NamedTuple):
    unwritten: list[AuditRecord]
    failure: OSError | None


def _is_refusal(record: AuditRecord) -> bool:
    """Return whether a record belongs to the files of refusals: peers without an account cause any number of them."""
    return record.result == REFUSED or (record.result == FAILED and not record.proof)


def open_audit_log(
    options: AuditOptions, acl_enable: bool, default: Path, server: str, clock: Clock
) -> ServerAuditLog | None:
    """Return the audit log of a server; None if it is off.

    Args:
        options: Settings of the server.
        acl_enable: Whether the server has access control.
        default: Directory of the files, unless it is set.
        server: Name of the server in records.
        clock: Wall and monotonic clock.

    Raises:
        ConfigError: the directory cannot be created, or a file cannot be read.
    """
    if not options.has_audit_log(acl_enable=acl_enable):
        return None
    directory = Path(options.audit_log_path) if options.audit_log_path else default
    try:
        directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        return ServerAuditLog(
            directory,
            server,
            file_bytes_max=options.audit_log_file_size,
            files_max=options.audit_log_files,
            clock=clock,
        )
    except OSError as error:
        raise ConfigError("auditLogPath", str(directory), f"cannot open the audit log: {error.strerror}") from error
