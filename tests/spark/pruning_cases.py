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

from pyspark.sql.functions import arrow_udf, md5

BODY_JSON = {"bodyFormat": "json", "bodySchema": "id INT, customer STRING"}

AGGREGATES = ("min(message_id)", "max(message_id)", "min(keys)", "max(keys)", "max_by(keys, queue_offset)")

Result = dict[str, Any]  # rows, and the columns that Spark reads


def run_cases(spark: Any, namesrv: str, store: str, copy_topic: str, directory: str) -> dict[str, Result]:
    """Return the result of each case."""

    def topic(name: str = "T", **options: str) -> Any:
        return spark.read.format("rocketmq").options(namesrv=namesrv, topic=name, **options)

    frames: dict[str, Callable[[], Any]] = {
        "count": lambda: topic().load().groupBy().count(),
        "select": lambda: topic().load().select("keys", "queue_id"),
        "order of the select": lambda: topic().load().select("queue_id", "keys"),
        "filter": lambda: topic().load().where("tags = 'A'").select("keys"),
        "all columns": lambda: topic().load().withColumn("body", md5("body")),
        "interpreted": lambda: topic().load().withColumn("body", md5("body")),
        "batches without rows": lambda: topic(keys="K3").load().select("keys", "queue_id", "tags"),
        "no messages": lambda: topic("EMPTY").load(),
        "values of several batches": lambda: topic().load().selectExpr(*AGGREGATES),
        "function": lambda: topic().load().select(arrow_udf(lambda keys: keys, "string")("keys"), "message_id"),
        "schema": lambda: topic().schema("body BINARY, keys STRING, body_error STRING").load().select(md5("body")),
        "text": lambda: topic(bodyFormat="text", bodyErrors="null").load().selectExpr("md5(value)", "value_error"),
        "field of a value": lambda: topic(**BODY_JSON).load().select("value.customer"),
        "errors of values": lambda: topic(**BODY_JSON).load().selectExpr("value_error IS NULL AS valid"),
        "pushed filter": lambda: topic(pushDownPredicate="true").load().where("queue_id = 0").select("keys"),
        "count of a store": lambda: spark.read.format("rocketmq-store").load(store).where("topic = 'T'").groupBy().count(),
    }  # fmt: skip
    results = {}
    for name, make in frames.items():
        for setting, is_set in settings(name).items():
            spark.conf.set(setting, str(is_set).lower())
        frame = make()
        rows = sorted(str(list(row.asDict().items())) for row in frame.collect())
        results[name] = {"rows": rows, **describe_reading(frame)}
    frame = topic().load()
    results["one frame twice"] = {"rows": [str(frame.count()), str(len(frame.select("keys").collect()))]}
    reader = spark.readStream.format("rocketmq").options(namesrv=namesrv, topic="T")
    stream = reader.load().withColumn("body", md5("body")).writeStream.format("memory").queryName("streamed")
    query = stream.trigger(availableNow=True).start()
    query.awaitTermination(120)
    rows = [str(list(row.asDict().items())) for row in spark.table("streamed").collect()]
    results["stream"] = {"rows": [*sorted(rows), str(sum(batch["numInputRows"] for batch in query.recentProgress))]}
    copy = reader.load().select("body", "keys").writeStream.format("rocketmq")
    copy = copy.options(namesrv=namesrv, topic=copy_topic, checkpointLocation=f"{directory}/checkpoint")
    copy.trigger(availableNow=True).start().awaitTermination(120)
    topic().load().select("body", "keys").write.format("rocketmq").options(namesrv=namesrv, topic=copy_topic).mode(
        "append"
    ).save()
    copied = topic(copy_topic).load().groupBy("keys", md5("body")).count()
    results["copies"] = {"rows": sorted(str(list(row)) for row in copied.collect())}
    return results


def settings(name: str) -> dict[str, bool]:
    """Return the settings of a case."""
    return {
        "spark.sql.python.filterPushdown.enabled": "pushed" in name,
        "spark.sql.codegen.wholeStage": name != "interpreted",
        "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": name == "function",
    }


def describe_reading(frame: Any) -> Result:
    """Return the columns that the frame's plan reads, and whether it converts them to rows."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain("formatted")
    schema = re.search(r"ReadSchema: struct<(.*)>", printed.getvalue())
    assert schema, printed.getvalue()
    names = re.findall(r"(?:^|,)(\w+):", re.sub(r"<[^<>]*>", "", schema[1]))
    return {"read": names, "columnar": "ColumnarToRow" in printed.getvalue()}


def main(namesrv: str, store: str, copy_topic: str, directory: str) -> None:
    from ariane.pipeline.spark_session import get_or_create_session
    from ariane.spark import RocketMQSource, StoreSource, pruning_jar

    # By TCP, as sessions of others, while the session without the jar uses Unix sockets.
    conf = {"spark.jars": pruning_jar(), "spark.python.unix.domain.socket.enabled": "false"}
    spark = get_or_create_session("column pruning", "local[2]", conf=conf)
    spark.dataSource.register(RocketMQSource)
    spark.dataSource.register(StoreSource)
    print(json.dumps(run_cases(spark, namesrv, store, copy_topic, directory)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
