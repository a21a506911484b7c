"""`format("rocketmq")` and `format("rocketmq-store")`: messages as DataFrames, and back. It runs on executors, and loads no server.

    brokers ─ wire ─→ read ──→ records ─→ rows        the way of what is read
       files ───────→ store ─↗
    brokers ←─ wire ─ write ←──────────── rows        the way of what is written

What an application uses is imported from here, and is loaded (with pyspark) when it is first used. The import itself sets
PYSPARK_PYTHON where Spark would run another Python than this one (`interpreter`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ariane.spark import interpreter

if TYPE_CHECKING:
    from ariane.spark.read.dedup import drop_duplicates
    from ariane.spark.read.progress import LagListener, OffsetCommitter, lags
    from ariane.spark.source import RocketMQSource
    from ariane.spark.store.source import StoreSource

__all__ = ["LagListener", "OffsetCommitter", "RocketMQSource", "StoreSource", "drop_duplicates", "lags"]

_MODULES = {
    "LagListener": "read.progress",
    "OffsetCommitter": "read.progress",
    "RocketMQSource": "source",
    "StoreSource": "store.source",
    "drop_duplicates": "read.dedup",
    "lags": "read.progress",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f"{__name__}.availability").require_connector()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


interpreter.choose_python()
