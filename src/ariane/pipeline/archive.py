"""Topics → archive: every message with body and properties, by day and topic, each once.

It is one Source without folds, so it runs as any job does (`run`): batches by the checkpoint, files by their list, small ones
merged, days older than the retention left. It has a home of its own choice: archives live longer than the other tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ariane.errors import ConfigError
from ariane.model.topic import topic_name_fault
from ariane.pipeline.jobs import AppendTable, PipelineJob, TopicSource
from ariane.tables import ARCHIVE
from ariane.tables.archive import BUCKET_SEPARATOR

NAME = "archive"


def archive_rows(messages: DataFrame) -> DataFrame:
    """Rows with the columns of ARCHIVE and `bucket`, of messages as the source gives them."""
    day = F.date_format("store_timestamp", "yyyy-MM-dd")
    return messages.select(*ARCHIVE.column_names, F.concat_ws(BUCKET_SEPARATOR, day, "topic").alias("bucket"))


def archive_job(topics: Sequence[str] = (), pattern: str = "", *, system_topics: bool = False) -> PipelineJob:
    """The job that archives these topics, or those whose names match. ConfigError when neither or both are given.

    With other topics than before, the topics that are new are read from their beginning.
    """
    if bool(topics) == bool(pattern):
        raise ConfigError("--topics", ",".join(topics), "give either --topics a,b or --topics-pattern")
    for topic in topics:
        if fault := topic_name_fault(topic):
            raise ConfigError("--topics", topic, fault)
    options = {"topicsPattern": pattern}
    if topics:
        options = {"topic": topics[0]} if len(topics) == 1 else {"topics": ",".join(topics)}
    if system_topics:
        options["includeSystemTopics"] = "true"
    source = TopicSource(NAME, options, ARCHIVE.ddl, (AppendTable(ARCHIVE, archive_rows),))
    return PipelineJob(NAME, (source,), ())
