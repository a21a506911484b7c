"""Spark connector: `format("rocketmq")` and `format("rocketmq-store")`. Runs on executors and imports no server code.

    brokers ─ wire ─→ read ──→ records ─→ rows        reading
       files ───────→ store ─↗
    brokers ←─ wire ─ write ←──────────── rows        writing

Applications import everything from this module; names are loaded (with pyspark) on first use. The import itself sets
PYSPARK_PYTHON if Spark would otherwise run another Python than this one (`interpreter`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ariane.extras import naming_extras
from ariane.spark import interpreter

if TYPE_CHECKING:
    from ariane.spark.pruning import pruning_jar
    from ariane.spark.read.dedup import drop_duplicates
    from ariane.spark.read.progress import LagListener, OffsetCommitter, lags
    from ariane.spark.source import RocketMQSource
    from ariane.spark.store.source import StoreSource

__all__ = ["LagListener", "OffsetCommitter", "RocketMQSource", "StoreSource", "drop_duplicates", "lags", "pruning_jar"]

_MODULES = {
    "LagListener": "read.progress",
    "OffsetCommitter": "read.progress",
    "RocketMQSource": "source",
    "StoreSource": "store.source",
    "drop_duplicates": "read.dedup",
    "lags": "read.progress",
    "pruning_jar": "pruning",
}

# Hidden from type checkers: with it, they would accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with naming_extras():
            import_module(f"{__name__}.availability").require_connector()
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


interpreter.choose_python()
