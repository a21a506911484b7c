"""Every exception of Ariane, in one tree; facts are attributes, the message is for people.

ArianeError
├── ProtocolError        the peer broke the protocol: bytes that are no frame, header, record, property ...
│   └── HeaderError      a request's header lacks a field or holds a value of the wrong type (names the field)
├── StoreError           the disk's fault, or the store directory's
│   ├── StoreCorrupt     bytes on disk that no rule allows (path, offset)
│   ├── StoreFull        no room; writes are refused until space returns
│   ├── FlushFailed      an fsync failed: the writer has stopped for good (path)
│   └── StoreLocked      another process has this directory open
├── ReplyError           the other side said no (code, remark, addr)
├── RequestTimeout       no answer in time (addr, timeout_ms)
├── ConnectionLost       the connection was refused or closed before the answer (addr)
├── ServerUnavailable    name servers or brokers did not respond in any of several attempts
├── RouteNotFound        no name server knows the topic, or none of its brokers is alive (topic)
├── MessageRefused       a message this client must not send: empty body, bad topic, too large
├── FilterError          an SQL92 expression that is none (expression, position, why)
├── ConfigError          a setting that cannot be used (key, value, fix)
│   └── UsageError       an option or argument of a command that cannot be used
└── ClientClosed         the producer or consumer was used before its start or after its end
"""

from __future__ import annotations


class ArianeError(Exception):
    """Root of all errors raised by Ariane."""


class ProtocolError(ArianeError):
    """The peer broke the protocol."""


class HeaderError(ProtocolError):
    """A request header cannot be read as what its code asks for."""


class StoreError(ArianeError):
    """The disk, or the store directory, is at fault."""


class StoreCorrupt(StoreError):
    """Bytes on disk that no rule of the format allows."""

    def __init__(self, path: str, offset: int, why: str) -> None:
        super().__init__(f"{path} at {offset}: {why}")
        self.path = path
        self.offset = offset
        self.why = why


class StoreFull(StoreError):
    """No room for another record; reads go on."""


class FlushFailed(StoreError):
    """An fsync failed; nothing after the last flushed position may be acknowledged, ever."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"cannot flush {path}: {why}; the store takes no more writes until it is restarted")
        self.path = path
        self.why = why


class StoreLocked(StoreError):
    """Another process has this store directory open."""


class ReplyError(ArianeError):
    """The other side answered with a code that is not success."""

    def __init__(self, code: int, remark: str | None, addr: str = "") -> None:
        super().__init__(f"{addr or 'peer'} answered code {code}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark
        self.addr = addr


class RequestTimeout(ArianeError):
    """No answer in time."""

    def __init__(self, addr: str, timeout_ms: float) -> None:
        super().__init__(f"no answer from {addr} within {timeout_ms:.0f} ms")
        self.addr = addr
        self.timeout_ms = timeout_ms


class ConnectionLost(ArianeError):
    """The connection was refused, or closed before the answer came."""

    def __init__(self, addr: str, why: str) -> None:
        super().__init__(f"connection to {addr}: {why}")
        self.addr = addr
        self.why = why


class RouteNotFound(ArianeError):
    """No name server knows the topic, or none of its brokers can do what was asked."""

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(f"no route for topic {topic}: {why}")
        self.topic = topic


class ServerUnavailable(ArianeError):
    """Name servers or brokers did not respond in any of several attempts; a later one may succeed."""


class MessageRefused(ArianeError):
    """A message that must not be sent as it is; the text says what to change."""


class FilterError(ArianeError):
    """An SQL92 expression that cannot be understood; the text shows the place. `position` counts characters from 0."""

    AROUND = 48  # characters shown before and behind the place: an expression may be as long as a page

    def __init__(self, expression: str, position: int, why: str) -> None:
        first = max(0, position - self.AROUND)
        shown = expression[first : position + self.AROUND]
        shown = "".join(char if char.isprintable() else " " for char in shown)
        before, behind = "…" if first else "", "…" if position + self.AROUND < len(expression) else ""
        caret = " " * (len(before) + position - first) + "^"
        super().__init__(f"column {position + 1}: {why}\n{before}{shown}{behind}\n{caret}")
        self.expression = expression
        self.position = position
        self.why = why


class ConfigError(ArianeError):
    """A setting that cannot be used."""

    def __init__(self, key: str, value: object, fix: str) -> None:
        super().__init__(f"{key}: {fix}" if value is None else f"{key} = {value!r}: {fix}")
        self.key = key
        self.value = value
        self.fix = fix


class UsageError(ConfigError):
    """A command line that cannot be run. `value` None: the option or argument is missing."""


class ClientClosed(ArianeError):
    """A producer or consumer was used before its start or after its end."""
