"""Topics → archive: each message with body and properties exactly once, by day and topic.

The archive is a job with one source and no computed tables, so it runs like any job (`run`): batches by checkpoint, files listed
in CURRENT, small files merged, expired days removed. It has its own home, because archives live longer than the other tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ariane.errors import ConfigError
from ariane.model.topic import topic_name_fault
from ariane.pipeline.jobs import PipelineJob, TopicSource
from ariane.pipeline.tables.bucket_columns import with_buckets
from ariane.tables import ARCHIVE
from ariane.tables.declarations.archive import BUCKET_SEPARATOR

NAME = "archive"


def decode(messages: pa.Table) -> dict[str, pa.Table]:
    """Return the rows of ARCHIVE, with `bucket`, by name of the table, from messages of format("rocketmq")."""
    day = pc.strftime(messages["store_timestamp"], "%Y-%m-%d")
    buckets = pc.binary_join_element_wise(day, messages["topic"], BUCKET_SEPARATOR)
    return {ARCHIVE.name: with_buckets(messages, ARCHIVE, buckets)}


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
    source = TopicSource(NAME, options, ARCHIVE.ddl, (ARCHIVE,), decode)
    return PipelineJob(NAME, (source,), ())
