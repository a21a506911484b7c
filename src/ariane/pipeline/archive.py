"""Topics → archive: each message with body and properties exactly once, by day and topic.

The archive is a job with one source and no computed tables, so it runs like any job (`run`): batches by checkpoint, files listed
in CURRENT, small files merged, expired days removed. It has its own home, because archives live longer than the other tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ariane.errors import ConfigError
from ariane.model.topic import topic_name_fault
from ariane.pipeline.jobs import AppendTable, PipelineJob, TopicSource
from ariane.tables import ARCHIVE
from ariane.tables.declarations.archive import BUCKET_SEPARATOR

NAME = "archive"


def archive_rows(messages: DataFrame) -> DataFrame:
    """Return rows with the columns of ARCHIVE and `bucket`, from messages of format("rocketmq")."""
    day = F.date_format("store_timestamp", "yyyy-MM-dd")
    return messages.select(*ARCHIVE.column_names, F.concat_ws(BUCKET_SEPARATOR, day, "topic").alias("bucket"))


def archive_job(topics: Sequence[str] = (), pattern: str = "", *, system_topics: bool = False) -> PipelineJob:
    """Return the job that archives the given topics, or those that match a pattern.

    Topics that were not archived before are read from their earliest offsets.

    Raises:
        ConfigError: neither or both are given, or a topic name is invalid.
    """
    if bool(topics) == bool(pattern):
        raise ConfigError("--topics", ",".join(topics), "expected either --topics a,b or --topics-pattern")
    for topic in topics:
        if fault := topic_name_fault(topic):
            raise ConfigError("--topics", topic, fault)
    options = {"topicsPattern": pattern}
    # One topic and several are different options of the source.
    if topics:
        options = {"topic": topics[0]} if len(topics) == 1 else {"topics": ",".join(topics)}
    if system_topics:
        options["includeSystemTopics"] = "true"
    source = TopicSource(NAME, options, ARCHIVE.ddl, (AppendTable(ARCHIVE, archive_rows),))
    return PipelineJob(NAME, (source,), ())
