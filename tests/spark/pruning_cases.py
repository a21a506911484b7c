"""Reads and writes of test_column_pruning, in its session and, with the jar for column pruning, in a session of this program.

python pruning_cases.py NAMESRV STORE COPY DIRECTORY     prints the results as a line of JSON
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from typing import Any

BODY_JSON = {"bodyFormat": "json", "bodySchema": "id INT, customer STRING"}

Result = dict[str, Any]  # rows, and the columns that Spark reads


def run_cases(spark: Any, namesrv: str, store: str, copy_topic: str, directory: str) -> dict[str, Result]:
    """Return the result of each case."""

    def topic(**options: str) -> Any:
        return spark.read.format("rocketmq").options(namesrv=namesrv, topic="T", **options)

    frames: dict[str, Callable[[], Any]] = {
        "count": lambda: topic().load().groupBy().count(),
        "select": lambda: topic().load().select("keys", "queue_id"),
        "order of the select": lambda: topic().load().select("queue_id", "keys"),
        "filter": lambda: topic().load().where("tags = 'A'").select("keys"),
        "all columns": lambda: topic().load().selectExpr("*", "keys AS again").drop("again", "properties"),
        "schema": lambda: topic().schema("body BINARY, keys STRING, body_error STRING").load().selectExpr("string(body)"),
        "field of a value": lambda: topic(**BODY_JSON).load().select("value.customer"),
        "errors of values": lambda: topic(**BODY_JSON).load().selectExpr("value_error IS NULL AS valid"),
        "pushed filter": lambda: topic(pushDownPredicate="true").load().where("queue_id = 0").select("keys"),
        "count of a store": lambda: spark.read.format("rocketmq-store").load(store).where("topic = 'T'").groupBy().count(),
    }  # fmt: skip
    results = {}
    for name, make in frames.items():
        spark.conf.set("spark.sql.python.filterPushdown.enabled", str("pushed" in name).lower())
        frame = make()
        rows = sorted(str(list(row.asDict().items())) for row in frame.collect())
        results[name] = {"rows": rows, "read": read_columns(frame)}
    frame = topic().load()
    results["one frame twice"] = {"rows": [str(frame.count()), str(len(frame.select("keys").collect()))], "read": []}
    reader = spark.readStream.format("rocketmq").options(namesrv=namesrv, topic="T")
    copy = reader.load().select("body", "keys").writeStream.format("rocketmq")
    copy = copy.options(namesrv=namesrv, topic=copy_topic, checkpointLocation=f"{directory}/checkpoint")
    copy.trigger(availableNow=True).start().awaitTermination(120)
    topic().load().select("body", "keys").write.format("rocketmq").options(namesrv=namesrv, topic=copy_topic).mode(
        "append"
    ).save()
    copied = spark.read.format("rocketmq").options(namesrv=namesrv, topic=copy_topic).load()
    results["copies"] = {"rows": [str(copied.count())], "read": []}
    return results


def read_columns(frame: Any) -> list[str]:
    """Return the columns that the frame's plan reads."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain("formatted")
    schema = re.search(r"ReadSchema: struct<(.*)>", printed.getvalue())
    assert schema, printed.getvalue()
    return re.findall(r"(?:^|,)(\w+):", re.sub(r"<[^<>]*>", "", schema[1]))


def main(namesrv: str, store: str, copy_topic: str, directory: str) -> None:
    from ariane.pipeline.spark_session import get_or_create_session
    from ariane.spark import RocketMQSource, StoreSource, pruning_jar

    spark = get_or_create_session("column pruning", "local[2]", conf={"spark.jars": pruning_jar()})
    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(StoreSource)
    print(json.dumps(run_cases(spark, namesrv, store, copy_topic, directory)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
