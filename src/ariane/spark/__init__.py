"""`format("rocketmq")`: RocketMQ topics as DataFrames. What runs on an executor is here, and loads no server.

What an application uses is imported from here, and is loaded (with pyspark) when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ariane.spark.dedup import drop_duplicates
    from ariane.spark.progress import CommitOffsets, Lag, lags
    from ariane.spark.source import RocketMQSource
    from ariane.spark.store_source import StoreSource

__all__ = ["CommitOffsets", "Lag", "RocketMQSource", "StoreSource", "drop_duplicates", "lags"]

_FROM = {
    "CommitOffsets": "progress",
    "Lag": "progress",
    "RocketMQSource": "source",
    "StoreSource": "store_source",
    "drop_duplicates": "dedup",
    "lags": "progress",
}


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FROM[name]}"), name)
