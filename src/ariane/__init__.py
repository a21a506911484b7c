"""Ariane: RocketMQ in Python, with its data pipeline on Spark.

    from ariane import Message, Producer, PushConsumer

The names below are the public API of clients and administration. Each is imported on first use, so `import ariane` is cheap
and a program loads only the parts that it uses. Test fixtures are in `ariane.testing`, the Spark connector in `ariane.spark`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# Type checkers and editors see the names without importing anything at run time.
if TYPE_CHECKING:
    from ariane import errors
    from ariane.client import (
        ClientInstance,
        ClientSettings,
        ConsumedKey,
        ConsumedStore,
        ConsumeFinished,
        Consumer,
        ConsumerMessage,
        ConsumerSettings,
        ConsumeStarted,
        Credentials,
        Idempotent,
        LitePullConsumer,
        LocalState,
        MemoryStore,
        PayloadMessage,
        PoppedMessage,
        Producer,
        ProducerSettings,
        PullConsumer,
        PullResult,
        PushConsumer,
        ReconsumeLater,
        RedisStore,
        SendEvent,
        SendResult,
        SendStatus,
        SimpleConsumer,
        Sql,
        SqliteStore,
        TraceCounts,
        TraceSettings,
        Transaction,
        TransactionEnd,
        TransactionProducer,
        TransactionResult,
    )
    from ariane.cluster.admin import Admin
    from ariane.errors import (
        AlreadyExists,
        ArianeError,
        ClientClosed,
        ConfigError,
        ConnectionLost,
        CoordinationUnavailable,
        DeliveryExpired,
        FilterError,
        FlushFailed,
        HalfMessageLate,
        HeaderError,
        InvalidLeaderRecord,
        MessageRefused,
        MissingPackage,
        NotFound,
        PartialFailure,
        PopUnsupported,
        ProtocolError,
        RecordsLost,
        ReplyError,
        RequestTimeout,
        RouteNotFound,
        ServerUnavailable,
        StoreCorrupt,
        StoreError,
        StoreFull,
        StoreLocked,
        UsageError,
    )
    from ariane.model.message import Message, MessageQueue, ReceivedMessage

    __version__: str

__all__ = [
    "Admin",
    "AlreadyExists",
    "ArianeError",
    "ClientClosed",
    "ClientInstance",
    "ClientSettings",
    "ConfigError",
    "ConnectionLost",
    "ConsumeFinished",
    "ConsumeStarted",
    "ConsumedKey",
    "ConsumedStore",
    "Consumer",
    "ConsumerMessage",
    "ConsumerSettings",
    "CoordinationUnavailable",
    "Credentials",
    "DeliveryExpired",
    "FilterError",
    "FlushFailed",
    "HalfMessageLate",
    "HeaderError",
    "Idempotent",
    "InvalidLeaderRecord",
    "LitePullConsumer",
    "LocalState",
    "MemoryStore",
    "Message",
    "MessageQueue",
    "MessageRefused",
    "MissingPackage",
    "NotFound",
    "PartialFailure",
    "PayloadMessage",
    "PopUnsupported",
    "PoppedMessage",
    "Producer",
    "ProducerSettings",
    "ProtocolError",
    "PullConsumer",
    "PullResult",
    "PushConsumer",
    "ReceivedMessage",
    "ReconsumeLater",
    "RecordsLost",
    "RedisStore",
    "ReplyError",
    "RequestTimeout",
    "RouteNotFound",
    "SendEvent",
    "SendResult",
    "SendStatus",
    "ServerUnavailable",
    "SimpleConsumer",
    "Sql",
    "SqliteStore",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "TraceCounts",
    "TraceSettings",
    "Transaction",
    "TransactionEnd",
    "TransactionProducer",
    "TransactionResult",
    "UsageError",
    "errors",
]

_CLIENT, _MODEL = "ariane.client", "ariane.model.message"
# Modules of the names that need none of the client's modules.
_MODULES = {"Admin": "ariane.cluster.admin", "Message": _MODEL, "MessageQueue": _MODEL, "ReceivedMessage": _MODEL}

# Hidden from type checkers: with it, they would accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib import metadata  # a third of the start-up time of `mqadmin`, which seldom needs it

            return metadata.version("ariane")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        errors = import_module("ariane.errors")  # every other module imports it, too
        if name == "errors":
            return errors
        module = errors if hasattr(errors, name) else import_module(_MODULES.get(name, _CLIENT))
        return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
