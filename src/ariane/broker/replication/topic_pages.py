"""The whole table of topics, for tools and slaves (GET_ALL_TOPIC_CONFIG, 21): the sides of master and slave.

4.9.4 answers with the whole table in one frame, which holds about 90,000 topics. An Ariane slave requests pages (extFields
`pageOffset`, `knownCounter`, `knownTimestamp`, which a Java master ignores). An Ariane master then answers with PAGE_TOPICS topics
and `nextOffset`, or without topics if the slave has that version. [AdminBrokerProcessor.getAllTopicConfig, SlaveSynchronize]
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from ariane.broker.state.topic_registry import TopicRegistry
from ariane.errors import ProtocolError
from ariane.model.topic import DataVersion, TopicConfig, TopicDeletion
from ariane.net.connection import Reply
from ariane.net.shared_replies import SharedReplies
from ariane.protocol import fastjson
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.routing import MasterTopicTable, TopicPage, TopicPageRequest

PAGE_TOPICS = 2_000  # topics: 2 ms to encode
LARGE_BODY = 256 * 1024

Deletions = Mapping[str, TopicDeletion]


class _TopicPageOutline(msgspec.Struct, frozen=True, rename="camel"):
    """A MasterTopicTable without its topics: decoding skips them."""

    data_version: DataVersion = DataVersion()
    deleted_topics: dict[str, TopicDeletion] | None = None


def reply(
    topics: TopicRegistry, deletions: Deletions, request: TopicPageRequest, shared: SharedReplies
) -> Reply | Awaitable[Reply]:
    """Return the table, or the requested page of it. Concurrent requests share one encoding of a large table."""
    deleted = dict(deletions) or None
    if request.page_offset is not None:
        return _page(topics, deleted, request, request.page_offset)
    if len(topics.names()) <= PAGE_TOPICS:
        table = topics.table()
        return Reply(
            fields={}, body=_encode(table.data_version, [msgspec.json.encode(table.topic_config_table)], deleted)
        )
    return shared.get("topics", lambda: _whole(topics, dict(deletions) or None))


def _page(
    topics: TopicRegistry, deleted: dict[str, TopicDeletion] | None, request: TopicPageRequest, offset: int
) -> Reply:
    version = topics.version
    if DataVersion(request.known_counter, request.known_timestamp) == version:
        return Reply(fields={}, body=_encode(version, [], deleted))
    names = topics.names()
    configs = msgspec.json.encode(_configs(topics, names[offset : offset + PAGE_TOPICS]))
    body = _encode(version, [configs], deleted)
    more = {"nextOffset": str(offset + PAGE_TOPICS)} if offset + PAGE_TOPICS < len(names) else {}
    return Reply(fields=more, body=body)


async def _whole(topics: TopicRegistry, deleted: dict[str, TopicDeletion] | None) -> Reply:
    """Encode a large table in slices, between which other requests are served."""
    version, names = topics.version, topics.names()
    pieces = []
    for start in range(0, len(names), PAGE_TOPICS):
        pieces.append(msgspec.json.encode(_configs(topics, names[start : start + PAGE_TOPICS])))
        await asyncio.sleep(0)
    return Reply(fields={}, body=_encode(version, pieces, deleted))


def _encode(version: DataVersion, tables: list[bytes], deleted: dict[str, TopicDeletion] | None) -> bytes:
    """Return the JSON of a MasterTopicTable whose topics are those of several objects.

    Topic names are ASCII, so standard JSON is what fastjson prints, in a twentieth of the time.
    """
    member = b"" if deleted is None else b',"deletedTopics":' + fastjson.write(deleted)
    head = b'{"dataVersion":' + fastjson.write(version) + member + b',"topicConfigTable":{'
    return b"".join((head, b",".join(table[1:-1] for table in tables if table != b"{}"), b"}}"))


def _configs(topics: TopicRegistry, names: list[str]) -> dict[str, TopicConfig]:
    return {
        name: config for name in names if (config := topics.get(name)) is not None
    }  # a topic may have been deleted meanwhile


async def fetch(topics: TopicRegistry, request: Callable[[TopicPageRequest], Awaitable[Command]]) -> MasterTopicTable:
    """Return the master's table, page by page if the master supports that; without topics if the versions are equal."""
    own_version = topics.version
    pages: list[MasterTopicTable] = []
    offset: int | None = 0
    while offset is not None:
        response = await request(TopicPageRequest(offset, own_version.counter, own_version.timestamp))
        pages.append(_decoded(response.body, own_version))
        following = decode_header(response, TopicPage).next_offset
        if following is not None and following <= offset:
            raise ProtocolError(f"invalid page of the topic table: page {following} follows page {offset}")
        offset = following
    first, last = pages[0], pages[-1]
    table = dict(itertools.chain.from_iterable(page.topic_config_table.items() for page in pages))
    if first.data_version != last.data_version:
        # The master's table changed between the pages, so a topic may be missing. The next round copies the table again.
        table = {**topics.table().topic_config_table, **table}
    return MasterTopicTable(first.data_version, table, last.deleted_topics)


def _decoded(body: bytes, own_version: DataVersion) -> MasterTopicTable:
    if len(body) > LARGE_BODY:
        try:
            outline = msgspec.json.decode(body, type=_TopicPageOutline, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # not strict JSON: decoded below
        else:
            if outline.data_version == own_version:
                return MasterTopicTable(own_version, {}, outline.deleted_topics)
    return fastjson.decode(body, MasterTopicTable)
