"""`format("rocketmq")` as Spark knows it: topics as rows, a task or more per queue, and rows as messages.

    spark.dataSource.register(RocketMQSource)
    spark.readStream.format("rocketmq").option("namesrv", "127.0.0.1:9876").option("topic", "T").load()

    read, readStream      `read.batch`, `read.micro_batches`
    write, writeStream    `write.sink`

Exactly once by the checkpoint alone: the offsets of a batch stand in it before the batch runs, with their start, so a replay
reads the same rows (`read.micro_batches`, `read.offsets`). A schema given by the user (`.schema("body BINARY")`) leaves the other
columns undecoded.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from ariane.spark.availability import require_stream_reads
from ariane.spark.read.batch import BatchReader, FilteredReader
from ariane.spark.read.source_options import parse
from ariane.spark.records import arrow_decoder
from ariane.spark.records.schema import requested_columns
from ariane.spark.reporting import hide_traceback, reader_or_error


class RocketMQSource(DataSource):
    """The source as Spark registers it."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @hide_traceback
    def schema(self) -> str:
        parse(
            self.options
        )  # Spark asks for the schema when a frame is made: mistakes are reported there, not when it is used
        return arrow_decoder.DDL

    @hide_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(self.options)
        # Spark refuses a reader that has pushFilters unless its setting allows it: so it is one of two classes.
        kind = FilteredReader if options.push_down_predicate else BatchReader
        return kind(options, requested_columns(schema, arrow_decoder.COLUMNS))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        def reader() -> DataSourceStreamReader:
            require_stream_reads()
            from ariane.spark.read.micro_batches import StreamReader

            return StreamReader(parse(self.options), requested_columns(schema, arrow_decoder.COLUMNS))

        return reader_or_error(reader)

    @hide_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from ariane.spark.write.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @hide_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from ariane.spark.write.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
