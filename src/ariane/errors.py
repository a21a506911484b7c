"""All exceptions of Ariane, in one tree. Facts are attributes; the message is for people.

ArianeError
├── ProtocolError        the peer sent bytes that violate the protocol
│   └── HeaderError      a request header lacks a field, or a field has the wrong type; names the field
├── StoreError           the disk or the store directory failed
│   ├── StoreCorrupt     bytes on disk violate the format (path, offset)
│   ├── RecordsLost      complete records of the log, or their entries in queues, are missing; nothing was repaired
│   ├── StoreFull        the disk is full; writes are rejected until space is free
│   ├── FlushFailed      an fsync failed; the store accepts no more writes (path)
│   └── StoreLocked      another process has this directory open
├── ReplyError           the server responded with an error code (code, remark, addr)
│   └── PopUnsupported   the broker does not serve POP; says which consumers to use instead
├── DeliveryExpired      a message that was taken by POP was settled too late: it may be delivered again (message_id)
├── RequestTimeout       no response within the time limit (addr, timeout_ms)
├── ConnectionLost       the connection was refused, or closed before the response (addr)
├── ServerUnavailable    name servers or brokers did not respond in any of several attempts
├── RouteNotFound        no name server has a route of the topic, or none of its brokers is usable (topic)
├── NotFound             a cluster, broker, group or message that was named does not exist; lists those that do
├── PartialFailure       some of several servers failed to execute a change (failed, succeeded)
├── MessageRefused       the message cannot be sent: empty body, invalid topic, too large
├── HalfMessageLate      a half message was stored too late and rolled back (message_id, status)
├── FilterError          the SQL92 expression is invalid (expression, position, why)
├── ConfigError          the value of a setting is invalid (key, value, fix)
│   ├── AlreadyExists    something has the name that was chosen for something new
│   └── UsageError       an option or argument of a command is invalid
├── CoordinationUnavailable  no endpoint of the coordination service answered a read
├── InvalidLeaderRecord  the coordination service stores bytes that are not the record of a broker set
├── MissingPackage       a package of an extra is not installed; also a ModuleNotFoundError (name, extra)
└── ClientClosed         the producer or consumer is not started, or closed

`ariane.protocol.client_rules.transient.is_transient` decides which of them may disappear when the request is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence


class ArianeError(Exception):
    """Root of all errors raised by Ariane."""


class ProtocolError(ArianeError):
    """The peer sent bytes that violate the protocol; the message names the first violation."""


class HeaderError(ProtocolError):
    """A request header lacks a field that its code requires, or a field has the wrong type."""


class StoreError(ArianeError):
    """The disk or the store directory failed."""


class StoreCorrupt(StoreError):
    """Bytes on disk violate the format."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path} at {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class RecordsLost(StoreError):
    """Complete records of the log, or their entries in queues, are missing. Nothing was repaired.

    The next start finds the same records missing. It rebuilds all queues if entries are.
    """


class StoreFull(StoreError):
    """No room for another record; reads continue."""


class FlushFailed(StoreError):
    """An fsync failed. Nothing after the last flushed position may be acknowledged until the store is reopened."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"Cannot flush {path}: {reason}; the store accepts no more writes until it is restarted")
        self.path = path
        self.reason = reason


class StoreLocked(StoreError):
    """Another process has this store directory open."""


class ReplyError(ArianeError):
    """The server responded with another code than SUCCESS.

    Attributes:
        code: The response code (`ariane.protocol.codes.ResponseCode`).
        remark: The server's explanation, if it sent one.
        addr: Address of the server, or an empty string if unknown.
    """

    def __init__(self, code: int, remark: str | None, addr: str = "") -> None:
        super().__init__(f"{addr or 'peer'} answered code {code}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark
        self.addr = addr


class PopUnsupported(ReplyError):
    """The broker does not serve POP, which `SimpleConsumer` needs: it is one of Apache 4.x."""

    def __str__(self) -> str:
        return (
            f"Broker {self.addr} does not serve POP (code {self.code}: {self.remark or 'no remark'}): expected Ariane, or Apache"
            " 5.x; use Consumer, PushConsumer or LitePullConsumer, which every broker serves"
        )


class DeliveryExpired(ArianeError):
    """The delivery of a message has ended: its invisible time is over, or the message was removed. It may be delivered again."""

    def __init__(self, message_id: str, reason: str) -> None:
        super().__init__(f"the delivery of message {message_id} has ended: {reason}")
        self.message_id = message_id
        self.reason = reason


class RequestTimeout(ArianeError):
    """No response within the time limit. The request may have been executed."""

    def __init__(self, addr: str, timeout_ms: float) -> None:
        super().__init__(f"no response from {addr} within {timeout_ms:.0f} ms")
        self.addr = addr
        self.timeout_ms = timeout_ms


class ConnectionLost(ArianeError):
    """The connection was refused, or closed before the response arrived."""

    def __init__(self, addr: str, reason: str) -> None:
        super().__init__(f"connection to {addr}: {reason}")
        self.addr = addr
        self.reason = reason


class RouteNotFound(ArianeError):
    """No name server has a route of the topic, or none of its brokers is usable for the request."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"no route for topic {topic}: {reason}")
        self.topic = topic
        self.reason = reason


class ServerUnavailable(ArianeError):
    """Name servers or brokers did not respond in any of several attempts; a later attempt may succeed."""


class NotFound(ArianeError):
    """What was named does not exist.

    Attributes:
        kind: What was looked for: "cluster", "broker", "message".
        name: The name that was looked for.
        existing: Names that exist.
    """

    SHOWN = 10  # existing names that the message lists

    def __init__(self, kind: str, name: str, existing: Sequence[str] = ()) -> None:
        shown = ", ".join(existing[: self.SHOWN])
        more = f" and {len(existing) - self.SHOWN} more" if len(existing) > self.SHOWN else ""
        candidates = f"; expected one of: {shown}{more}" if existing else ""
        super().__init__(f"no {kind} {name}{candidates}")
        self.kind = kind
        self.name = name
        self.existing = tuple(existing)


class PartialFailure(ArianeError):
    """Some of several servers failed to execute a change.

    Attributes:
        failed: Pairs (what failed, on which server; the reason).
        succeeded: What succeeded, on which servers; it stays changed.
    """

    def __init__(self, failed: Sequence[tuple[str, str]], succeeded: Sequence[str]) -> None:
        lines = [f"{name}: {reason}" for name, reason in failed]
        # What succeeded stays changed, so the message lists both.
        done = [f"done: {name}" for name in succeeded]
        total = len(failed) + len(succeeded)
        head = [] if total == 1 else [f"{len(failed)} of {total} changes failed"]
        super().__init__("\n".join([*head, *lines, *done]))
        self.failed = tuple(failed)
        self.succeeded = tuple(succeeded)


class MessageRefused(ArianeError):
    """The message cannot be sent as it is; the text says what to change."""


class HalfMessageLate(ArianeError):
    """A half message was stored, but its flush or replication was late. It is rolled back, and the transaction must not run."""

    def __init__(self, message_id: str, status: str) -> None:
        super().__init__(
            f"half message {message_id} was stored with {status} and rolled back: send it again once the broker keeps up"
        )
        self.message_id = message_id
        self.status = status


class FilterError(ArianeError):
    """The SQL92 expression is invalid. The text marks the position, which counts characters from 0."""

    AROUND = 48  # characters shown before and after the position: expressions may fill a page

    def __init__(self, expression: str, position: int, reason: str) -> None:
        first = max(0, position - self.AROUND)
        shown = expression[first : position + self.AROUND]
        # A line feed or a tab in the expression would move the caret away from its column.
        shown = "".join(char if char.isprintable() else " " for char in shown)
        before, after = "…" if first else "", "…" if position + self.AROUND < len(expression) else ""
        caret = " " * (len(before) + position - first) + "^"
        super().__init__(f"column {position + 1}: {reason}\n{before}{shown}{after}\n{caret}")
        self.expression = expression
        self.position = position
        self.reason = reason


class ConfigError(ArianeError):
    """The value of a setting is invalid; `fix` says what to change."""

    def __init__(self, key: str, value: object, fix: str) -> None:
        super().__init__(f"{key}: {fix}" if value is None else f"{key} = {value!r}: {fix}")
        self.key = key
        self.value = value
        self.fix = fix


class CoordinationUnavailable(ArianeError):
    """No endpoint of the coordination service answered a read; says what each one responded."""


class InvalidLeaderRecord(ArianeError):
    """The coordination service stores bytes that are not the record of a broker set."""


class AlreadyExists(ConfigError):
    """Something has the name that was chosen for something new."""


class UsageError(ConfigError):
    """An option or argument of a command is invalid. `value` is None if it is missing."""


class MissingPackage(ArianeError, ModuleNotFoundError):
    """A package is not installed. It belongs to an extra of the distribution: `pip install ariane` installs what clients need."""

    def __init__(self, package: str, extra: str, python: str) -> None:
        super().__init__(f"{package} is not installed for {python}: pip install 'ariane[{extra}]'")
        self.name = package
        self.extra = extra


class ClientClosed(ArianeError):
    """The producer or consumer was used before it was started, or after it was closed."""
