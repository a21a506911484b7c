"""`format("rocketmq-store")` without a register call: Spark looks for `DefaultSource` in every installed module `pyspark_*`.

Spark imports all such modules whenever it looks one up, so this one costs nothing until it is asked.
"""

from __future__ import annotations

from importlib import import_module

SOURCE = "ariane.spark.store_source"


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(SOURCE).StoreSource
    except ModuleNotFoundError as error:
        if error.name != SOURCE:
            raise
        # Spark then passes this module over; any other error would take all Python sources away.
        raise AttributeError(f"{SOURCE} is not installed") from error
