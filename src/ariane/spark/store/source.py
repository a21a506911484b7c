"""`spark.read.format("rocketmq-store")`: a broker's store directory as rows, without a broker.

    spark.dataSource.register(StoreSource)
    spark.read.format("rocketmq-store").load("/path/of/store").where("keys = 'order-17'")

Reads files of Java brokers and of Ariane, of a running broker or of a copy. The end of the log is determined when a read is
planned. Each task reads a part of one file (`log_task`) and needs access to the directory. `micro_batches` reads it as a stream.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ariane.spark.availability import require_stream_reads
from ariane.spark.records.schema import requested_columns
from ariane.spark.reporting import hide_traceback, message_only, reader_or_error
from ariane.spark.store import commit_log, log_task
from ariane.spark.store.log_partitions import plan_partitions, read_partition
from ariane.spark.store.store_options import StoreOptions, parse, reject_stream_options


class StoreSource(DataSource):
    """Spark data source of the format `rocketmq-store`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    @hide_traceback
    def schema(self) -> str:
        parse(self.options)  # validated here because Spark requests the schema in load(): mistakes are reported early
        return log_task.DDL

    @hide_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        return StoreReader(parse(self.options), requested_columns(schema, log_task.COLUMNS))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        def reader() -> DataSourceStreamReader:
            require_stream_reads()
            from ariane.spark.store.micro_batches import StoreStreamReader

            return StoreStreamReader(parse(self.options), requested_columns(schema, log_task.COLUMNS))

        return reader_or_error(reader)


class StoreReader(DataSourceReader):
    """Reads the whole log."""

    def __init__(self, options: StoreOptions, columns: list[str]) -> None:
        reject_stream_options(options)
        self._options = options
        self._columns = columns

    @hide_traceback
    def partitions(self) -> list[InputPartition]:
        stored_log = commit_log.find_log(self._options.path)
        return plan_partitions(stored_log, stored_log.start, stored_log.end, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with message_only():
            yield from read_partition(partition, self._options, self._columns)
