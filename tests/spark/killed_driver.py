"""The driver of test_source_kills: a query from a topic to Parquet, in small micro-batches, until it is killed or finished.

python killed_driver.py NAMESRV HOME MASTER on|rest
"""

from __future__ import annotations

import sys
from pathlib import Path

from ariane.pipeline.spark_session import get_or_create_session
from ariane.spark import RocketMQSource


def main(namesrv: str, home: Path, master: str, until: str) -> None:
    spark = get_or_create_session("killed", master)
    spark.dataSource.register(RocketMQSource)
    options = {"namesrv": namesrv, "topic": "T", "minPartitions": "3", "retries": "5"}
    options["maxOffsetsPerTrigger"] = "1000" if until == "rest" else "100"
    source = spark.readStream.format("rocketmq").schema("queue_id INT, queue_offset BIGINT, body BINARY")
    to_files = source.options(**options).load().writeStream.format("parquet").option("path", str(home / "rows"))
    to_files = to_files.option("checkpointLocation", str(home / "checkpoint"))
    if until == "rest":
        to_files = to_files.trigger(availableNow=True)
    to_files.start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
