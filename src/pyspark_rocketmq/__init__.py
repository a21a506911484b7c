"""Makes Spark find `format("rocketmq")`: it looks for `DefaultSource` in every installed module named `pyspark_*`.

Spark imports all such modules to resolve any format, so the source itself is loaded on first access only.
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
