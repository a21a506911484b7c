"""Name servers: KV table, configuration, and the write permission of brokers. [namesrv.*Command of Java's tools]

Name servers do not talk to each other, so every change goes to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ariane.access.public_ports import CERTIFICATE_DAYS_KEY, OPEN_PORTS_KEY
from ariane.cluster.connection import Answers, BrokerServer, Change, ClusterConnection, NameServerUnavailable
from ariane.errors import ConfigError, NotFound, ReplyError
from ariane.protocol import java_properties
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.routing import BrokerName, ChangedTopics, KvKey, KvValue, PutKv

REPORTED_KEYS = (CERTIFICATE_DAYS_KEY, OPEN_PORTS_KEY)  # of Ariane's name servers, in the same answer as the settings


class NameServerTexts(NamedTuple):
    """What a name server answers to 319, as texts by key: its settings, and what it reports about its port."""

    settings: dict[str, str]
    reported: dict[str, str]


def parse_texts(body: bytes) -> NameServerTexts:
    """Return the content of an answer to 319, sorted by key."""
    settings = dict(sorted(java_properties.parse(body.decode(errors="replace")).items()))
    return NameServerTexts(settings, {key: settings.pop(key) for key in REPORTED_KEYS if key in settings})


class WritePermission(NamedTuple):
    """Number of topics for which a name server has changed the write permission of a broker; None in a dry run."""

    name_server: str
    topics: int | None


class NameServerOperations(ClusterConnection):
    """Operations on name servers."""

    # --- KV table ---

    async def fetch_kv(self, namespace: str, key: str) -> str | None:
        """Return a value of the KV table, from the first name server that has it; None if none has it."""
        try:
            answer = await self.routing.request(RequestCode.GET_KV_CONFIG, KvKey(namespace, key))
        except ReplyError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return decode_header(answer, KvValue).value

    async def put_kv(self, namespace: str, key: str, value: str) -> list[Change]:
        """Set a value of the KV table on all name servers.

        Raises:
            ConfigError: the namespace or the key is empty.
            PartialFailure: some name servers rejected the request or did not respond.
        """
        for name, text in (("namespace", namespace), ("key", key)):
            if not text.strip():
                raise ConfigError(name, text, "expected at least one character")
        return await self._change_all(f"set {namespace}/{key}", RequestCode.PUT_KV_CONFIG, PutKv(namespace, key, value))

    async def delete_kv(self, namespace: str, key: str) -> list[Change]:
        """Delete a value from the KV table of all name servers. A value that does not exist is ignored.

        Raises:
            PartialFailure: some name servers rejected the request or did not respond.
        """
        return await self._change_all(f"delete {namespace}/{key}", RequestCode.DELETE_KV_CONFIG, KvKey(namespace, key))

    # --- configuration ---

    async def fetch_name_server_config(self) -> Answers[dict[str, str]]:
        """Return the settings of every name server, sorted by key."""

        async def ask(server: BrokerServer) -> dict[str, str]:
            return parse_texts((await self.request(server.addr, RequestCode.GET_NAMESRV_CONFIG)).body).settings

        answers = await self.ask_all((BrokerServer("", "", 0, addr) for addr in self.name_servers), ask)
        return answers._replace(unavailable=tuple(NameServerUnavailable(*missing) for missing in answers.unavailable))

    async def update_name_server_config(self, settings: Mapping[str, str]) -> list[Change]:
        """Change settings of all name servers.

        Raises:
            PartialFailure: some name servers rejected the request or did not respond.
        """
        summary = "set " + ", ".join(f"{key} = {value}" for key, value in settings.items())
        body = java_properties.write(settings).encode()
        return await self._change_all(summary, RequestCode.UPDATE_NAMESRV_CONFIG, body=body)

    # --- write permission ---

    async def set_broker_writable(self, broker: str, is_writable: bool) -> list[WritePermission]:
        """Add or remove the write permission of a broker in all routes: producers stop sending to it, consumers go on.

        Args:
            broker: Name of the broker.
            is_writable: Whether producers may send to it.

        Raises:
            NotFound: no such broker is registered.
            PartialFailure: some name servers rejected the request or did not respond.
        """
        brokers = sorted((await self.fetch_cluster()).broker_addr_table)
        if broker not in brokers:
            raise NotFound("broker", broker, brokers)
        code, verb = (
            (RequestCode.ADD_WRITE_PERM_OF_BROKER, "restore")
            if is_writable
            else (RequestCode.WIPE_WRITE_PERM_OF_BROKER, "remove")
        )
        summary = f"{verb} the write permission of broker {broker}"
        changes = [Change(addr, summary, code, BrokerName(broker)) for addr in self.name_servers]
        results = []
        for change, response in await self.execute(*changes):
            counts = None if response is None else decode_header(response, ChangedTopics)
            # One of the two fields is set, depending on the code.
            topics = None if counts is None else counts.wipe_topic_count + counts.add_topic_count
            results.append(WritePermission(change.addr, topics))
        return results

    async def _change_all(
        self, summary: str, code: RequestCode, header: PutKv | KvKey | None = None, *, body: bytes = b""
    ) -> list[Change]:
        return await self.change(*(Change(addr, summary, code, header, body) for addr in self.name_servers))
