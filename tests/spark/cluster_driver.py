"""The driver of test_standalone_cluster: copy a topic to another with source and sink, and read a store.

python cluster_driver.py MASTER NAMESRV STORE     prints a line of JSON
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import functions as F

from ariane.pipeline.spark_session import get_or_create_session
from ariane.spark import RocketMQSource, StoreSource


def main(master: str, namesrv: str, store: str) -> None:
    spark = get_or_create_session("connector on a cluster", master)
    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(StoreSource)
    read = spark.read.format("rocketmq").option("namesrv", namesrv).option("minPartitions", "4")
    messages = read.option("topic", "T").load()
    messages.select("body", "keys").write.format("rocketmq").option("namesrv", namesrv).option("topic", "COPY").mode(
        "append"
    ).save()
    stored = spark.read.format("rocketmq-store").load(store)
    result = {
        "read": sorted(row["keys"] for row in messages.select("keys").collect()),
        "copied": sorted(row["keys"] for row in read.option("topic", "COPY").load().select("keys").collect()),
        "stored": sorted(row["keys"] for row in stored.where("topic = 'T'").select("keys").collect()),
        "damaged": stored.where(~F.col("valid")).count(),
    }
    print(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
