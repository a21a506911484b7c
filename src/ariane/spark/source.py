"""Spark data source of `format("rocketmq")`: reads topics as rows, and writes rows as messages.

    spark.dataSource.register(RocketMQSource)
    spark.readStream.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("topic", "T").load()

    read, readStream      `read.batch`, `read.micro_batches`
    write, writeStream    `write.sink`

Streams are exactly once by the checkpoint alone: it stores the start and end offsets of a batch before the batch runs, so a
replay reads the same rows (`read.micro_batches`, `read.offset_ranges`). If the user passes a schema (`.schema("body BINARY")`),
other columns are not decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from ariane.spark.availability import require_filters, require_stream_reads, require_stream_writes
from ariane.spark.read.batch import BatchReader, FilteredReader
from ariane.spark.read.source_options import parse
from ariane.spark.records import arrow_messages, record_columns
from ariane.spark.reporting import hide_traceback, reader_or_error
from ariane.spark.values import body_options
from ariane.spark.values.value_columns import ValueColumns, declared_columns, value_columns
from ariane.spark.values.value_types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

FORMAT = "rocketmq source"


class RocketMQSource(DataSource):
    """Spark data source of the format `rocketmq`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @hide_traceback
    def schema(self) -> str:
        parse(self.options)  # validated here because Spark requests the schema in load(): mistakes are reported early
        return declared_columns(body_options.parse(self.options, FORMAT), record_columns.DDL)

    @hide_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(self.options)
        if options.push_down_predicate:
            require_filters()
        columns = self._columns(schema)
        # Spark rejects a reader with pushFilters unless its setting allows it, so there are two classes.
        kind = FilteredReader if options.push_down_predicate else BatchReader
        return kind(options, columns.stored, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        def reader() -> DataSourceStreamReader:
            require_stream_reads()
            from ariane.spark.read.micro_batches import StreamReader

            columns = self._columns(schema)
            return StreamReader(parse(self.options), columns.stored, values=columns)

        return reader_or_error(reader)

    def _columns(self, schema: StructType) -> ValueColumns:
        requested = arrow_messages.requested_schema(schema)
        columns = value_columns(body_options.parse(self.options, FORMAT), requested or schema, record_columns.COLUMNS)
        return columns if requested is None else columns._replace(message_schema=arrow_schema(requested))

    @hide_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from ariane.spark.write.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @hide_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        require_stream_writes()
        from ariane.spark.write.stream_sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
