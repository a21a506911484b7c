"""`format("rocketmq")` without a register call: Spark looks for `DefaultSource` in every installed module `pyspark_*`.

Spark imports all such modules whenever it looks one up, so this one costs nothing until it is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ariane.spark import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ariane.spark.availability import load_source

    return load_source("rocketmq", "ariane.spark.source", "RocketMQSource")
