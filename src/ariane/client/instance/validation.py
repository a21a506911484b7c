"""Validation of what applications pass to clients; every constructor uses these checks. [Validators]

A check returns the value in the form that the client uses, or raises ConfigError with the name, the value and the fix. Checks
run when a client is constructed, so a mistake is an error there and not a traceback, or silence, while messages arrive.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from ariane.errors import ConfigError, ProtocolError
from ariane.filter import tags
from ariane.model import host
from ariane.model.topic import group_name_fault

NAMESRV_PORT = 9876
INSTANCE_URL = "http://MQ_INST_"
NAMESRV_FIX = "give host:port; several as a list, or joined by ';'"

# Names that the Java clients refuse: a forgotten group name would mix several programs into one group.
REFUSED_GROUPS = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})

# Times in ms since the epoch from 1973 to 5138. Seconds are below until 5138, microseconds are above since 1973.
MS_MIN, MS_MAX = 10**11, 10**14
SECONDS_MAX = 10 * 365 * 86_400  # longer durations are a mistake of units
# Java's are milliseconds: 3000 for a request, 5000 for a poll.
TIMEOUT_MAX_S = 600.0
POLL_MAX_S = 3_600.0

Value = TypeVar("Value")

StartPosition = Literal["first", "last"] | datetime  # as applications give it
StartOffset = Literal["first", "last"] | int  # the same with a time in ms since the epoch


def name_servers(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return the addresses in `host:port;host:port`, or in a list of such texts."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence | set | frozenset) or isinstance(texts, bytes | bytearray):
        raise ConfigError("namesrv", value, f"expected a text or a list of texts, not {_kind(value)}: {NAMESRV_FIX}")
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError("namesrv", value, f"{text!r} is {_kind(text)}, expected a text: {NAMESRV_FIX}")
    parts = (part.strip() for text in texts for part in text.split(";"))
    # The console of Alibaba Cloud shows the address of an instance as a URL.
    addresses = tuple(part.removeprefix("http://") if part.startswith(INSTANCE_URL) else part for part in parts if part)
    if not addresses:
        raise ConfigError("namesrv", value, "no address given: give at least one host:port")
    for address in addresses:
        if fault := _address_fault(address):
            raise ConfigError("namesrv", value, fault)
    return addresses


def _address_fault(address: str) -> str | None:
    if "," in address or any(character.isspace() for character in address):
        return f"{address!r} is not host:port; join several addresses by ';'"
    if "/" in address:
        return f"{address!r} is a URL: give host:port"
    name, colon, port = address.rpartition(":")
    if not colon or not port:
        return f"{address!r} has no port; name servers listen on {NAMESRV_PORT} by default: {address.rstrip(':')}:{NAMESRV_PORT}"
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
        return f"{address!r} has the port {port!r}; choose one from 1 to 65535"
    if not name:
        return f"{address!r} has no host before the port"
    try:
        host.parse(address)
    except ProtocolError as error:
        return f"{error}; {NAMESRV_FIX}"
    return None


def group_name(value: str) -> str:
    """Return the name of a group, if clients may use it."""
    fault = group_name_fault(value) if isinstance(value, str) else f"expected a text, not {_kind(value)}"
    if fault is None and value in REFUSED_GROUPS:
        fault = f"{value} is reserved as Java's default; choose a name of your own"
    if fault:
        raise ConfigError("group", value, fault)
    return value


def subscriptions(value: str | Sequence[str] | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the subscriptions of a consumer, at least one: topics with their expressions."""
    fix = 'give at least one topic, ["orders"], or a topic and its tags: {"orders": "paid || shipped"}'
    if isinstance(value, str):
        return {value: tags.ALL}
    if isinstance(value, Sequence | set | frozenset) and all(isinstance(topic, str) for topic in value):
        value = dict.fromkeys(value, tags.ALL)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError("subscriptions", value, f"expected names of topics, not {_kind(value)}: {fix}")
    if not value:
        raise ConfigError("subscriptions", value, f"no topic, so no message would ever arrive: {fix}")
    return value


def start(value: StartPosition) -> StartOffset:
    """Return where a group without a stored offset starts, a time in ms since the epoch."""
    if isinstance(value, datetime):
        return instant_ms("start", value)
    if value not in ("first", "last"):
        raise ConfigError("start", value, 'choose "first", "last", or a datetime with a time zone')
    return value


def instant_ms(key: str, value: datetime) -> int:
    """Return an instant in ms since the epoch."""
    if not isinstance(value, datetime):
        fix = "" if time_fault(value) else f": datetime.fromtimestamp({value} / 1000, UTC)"
        raise ConfigError(key, value, f"expected a datetime with a time zone, not {_kind(value)}{fix}")
    if value.tzinfo is None:
        raise ConfigError(key, value, "it has no time zone: give .astimezone() of it, or datetime.now(UTC) + …")
    ms = round(value.timestamp() * 1000)
    if fault := time_fault(ms):
        raise ConfigError(key, value, fault)
    return ms


def time_ms(key: str, value: int) -> int:
    """Return a time in ms since the epoch, if it is one."""
    if fault := time_fault(value):
        raise ConfigError(key, value, fault)
    return value


def time_fault(value: object) -> str | None:
    """Return why `value` is not a time in ms since the epoch, or None. 0 is allowed: the epoch, before every message."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"expected a whole number of ms since the epoch, not {_kind(value)}"
    if value == 0 or MS_MIN <= value < MS_MAX:
        return None
    if value < 0:
        return "a time in ms since the epoch is not negative"
    if value >= MS_MAX:
        fix = f"if it is in µs or ns, divide by 1,000 or 1,000,000{_as_time(value)}"
        return f"as ms since the epoch this is after the year 5100; {fix}"
    return (
        f"as ms since the epoch this is {_utc(value)}; if it is in seconds, multiply by 1,000 ({_utc(value * 1000)}); "
        f"for {value} ms from now, give time.time_ns() // 1_000_000 + {value}"
    )


def _as_time(value: int) -> str:
    for factor in (1_000, 1_000_000):
        if MS_MIN <= value // factor < MS_MAX:
            return f" ({_utc(value // factor)})"
    return ""


def _utc(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def callback(key: str, value: Any, *arguments: str) -> Any:
    """Return a function that the client calls with as many positional arguments as `arguments` names.

    Accepts functions, coroutine functions, bound methods, partials and objects with `__call__`. A callable without a signature
    (some built-in functions, annotations that cannot be evaluated) is accepted unchecked. For a decorated function the
    decorator's signature counts, because the decorator may pass other arguments on.
    """
    expected = f"a function of {len(arguments)} argument{'s' * (len(arguments) != 1)}: ({', '.join(arguments)})"
    if not callable(value):
        raise ConfigError(key, value, f"expected {expected}, not {_kind(value)}")
    call = value if inspect.isroutine(value) else getattr(value, "__call__", value)  # noqa: B004 - an object's own call
    for function in (value, call):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(key, value, "this is a generator: its body would never run; return instead of `yield`")
    try:
        signature = inspect.signature(value, follow_wrapped=False)
    except (TypeError, ValueError, NameError, AttributeError):
        return value
    try:
        signature.bind(*arguments)
    except TypeError as error:
        fault = f"it is called with {len(arguments)}, and takes {_name(value)}{signature} ({error})"
        raise ConfigError(key, value, f"expected {expected}; {fault}") from None
    return value


def callbacks(key: str, values: Iterable[Any], *arguments: str) -> tuple[Any, ...]:
    """Return functions that are called with the same arguments."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(key, values, f"expected a list of functions, not {_kind(values)}")
    return tuple(callback(key, value, *arguments) for value in values)


def codec(value: Any) -> Any:
    """Return a payload codec, or None."""
    if value is not None and not (
        callable(getattr(value, "encode", None)) and callable(getattr(value, "decode", None))
    ):
        fix = "expected an object with encode(value) and decode(body), such as ariane.payloads.Json(Order)"
        raise ConfigError("payload", value, fix)
    if isinstance(value, type):
        raise ConfigError("payload", value, f"this is a class: give an instance, such as Json({value.__name__})")
    return value


def of_kind(key: str, value: Any, kind: type[Value]) -> Value:
    """Return a value that must be an instance of `kind`."""
    if not isinstance(value, kind):
        raise ConfigError(key, value, f"expected {kind.__name__}, not {_kind(value)}")
    return value


def optional(key: str, value: Any, kind: type[Value]) -> Value | None:
    """Return a value that must be an instance of `kind` or None."""
    return None if value is None else of_kind(key, value, kind)


def seconds(key: str, value: float | timedelta, low: float = 0, high: float = SECONDS_MAX) -> float:
    """Return a duration from `low` to `high` in seconds."""
    duration = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise ConfigError(key, value, f"expected a number of seconds or a timedelta, not {_kind(value)}")
    if not low <= duration <= high:
        raise ConfigError(key, value, f"choose seconds, or a timedelta, from {low:,.15g} s to {high:,.15g} s")
    return float(duration)


def whole(key: str, value: int, low: int, high: int) -> int:
    """Return an integer from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(key, value, f"choose a whole number from {low} to {high}")
    return value


def _kind(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__}"


def _name(value: Callable[..., Any]) -> str:
    return getattr(value, "__qualname__", None) or type(value).__name__
