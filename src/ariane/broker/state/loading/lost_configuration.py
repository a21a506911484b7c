"""A start whose topics are gone although the store has messages: config/ was removed while the broker was stopped.

    written by    topics.json, its .bak, change log    messages of topics     start
    ----------    ---------------------------------    -------------------    --------------------------------------------
    Ariane        none of them                         yes                    refused, unless the topics are to be restored
    Java          none of them                         yes                    an error in the log: Java may never have had any
    any           one of them, or no such messages                            as usual

A broker of ours stores its change log before it serves its first request, so a checkpoint of ours proves that there was one. What
can be restored are the topics, with the queues that have messages, and the groups that have retry topics.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from ariane.broker.state.group_registry import GroupRegistry
from ariane.broker.state.saved import json_documents
from ariane.broker.state.saved.change_records import PREFIX
from ariane.broker.state.topic_registry import READ_WRITE, TopicRegistry
from ariane.errors import StoreError
from ariane.model.topic import DLQ_PREFIX, RETRY_PREFIX, TopicConfig, topic_name_fault
from ariane.store.disk.files import Disk
from ariane.store.log.checkpoint import read_checkpoint

log = logging.getLogger("ariane.broker.state")

OPTION = "--restore-topics"
SHOWN_MAX = 5  # names of topics in a message


def refuse_loss(disk: Disk, root: str, builtin: Collection[str], *, restores: bool) -> None:
    """Check that the topics of a store are stored, before the start changes anything.

    Args:
        restores: Whether the caller calls `restore_topics`.

    Raises:
        StoreError: the configuration is gone.
    """
    directory = f"{root}/config"
    if restores or any(_is_configuration(name) for name in _names(disk, directory)):
        return
    present = _names(disk, f"{root}/consumequeue")
    topics = [name for name in present if name not in builtin]
    saved = read_checkpoint(disk, f"{root}/checkpoint")
    is_ours = saved.safe_offset is not None
    if not topics and (present or not is_ours or not saved.queue_files):
        return
    shown = ", ".join(topics[:SHOWN_MAX]) + (", …" if len(topics) > SHOWN_MAX else "") or "unknown"
    loss = (
        f"{directory} has neither {json_documents.TOPICS} nor a change log, but this store has messages of {len(topics)}"
        f" topics ({shown}), which no client can read without their topics. Put the directory back, or start the broker once"
        f" with {OPTION}: it creates the topics with the queues that have messages; settings of topics and groups, and the"
        " offsets of consumers, are lost then"
    )
    if is_ours:
        raise StoreError(loss)
    log.error("%s", loss, extra={"notice": True})


def restore_topics(stored: Mapping[str, Collection[int]], topics: TopicRegistry, groups: GroupRegistry) -> None:
    """Create the missing topics of `stored` (topic → ids of its queues), and the groups of retry and dead-letter topics."""
    restored = []
    for name, queue_ids in sorted(stored.items()):
        if topics.get(name) is None and topic_name_fault(name) is None:
            count = max(queue_ids) + 1
            config = TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count, perm=READ_WRITE)
            topics.put(config, is_internal=True)
            restored.append(name)
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if name.startswith(prefix):
                groups.get_or_create(name.removeprefix(prefix))
    log.warning(
        "Restored %d topics from the consume queues: %s%s", len(restored), ", ".join(restored[:SHOWN_MAX]),
        ", …" if len(restored) > SHOWN_MAX else "", extra={"notice": True},
    )  # fmt: skip


def _is_configuration(name: str) -> bool:
    return name in (json_documents.TOPICS, f"{json_documents.TOPICS}.bak") or name.startswith(PREFIX)


def _names(disk: Disk, directory: str) -> list[str]:
    try:
        return disk.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):  # the latter is reported when the directory is opened
        return []
