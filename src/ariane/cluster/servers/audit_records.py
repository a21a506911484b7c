"""Audit logs of brokers and name servers: GET_AUDIT_LOG (14001) of Ariane's servers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ariane.cluster.connection import Answers, BrokerServer, ClusterConnection
from ariane.errors import ReplyError
from ariane.protocol import fastjson
from ariane.protocol.codes import RequestCode, ResponseCode
from ariane.protocol.requests.audit import AuditPage, AuditRecord, GetAuditLog

NOT_SUPPORTED = "it has no audit log: servers of Ariane from this version on have one, those of Java do not"


class AuditOperations(ClusterConnection):
    """Operations on audit logs."""

    async def audit_records(
        self, servers: Iterable[BrokerServer], selection: GetAuditLog, *, limit: int
    ) -> Answers[list[AuditRecord]]:
        """Return the newest records that are selected, up to `limit` of each server, the newest first.

        A server without an audit log, or that refuses the account, is `unavailable` with the reason.
        """

        async def ask(server: BrokerServer) -> list[AuditRecord]:
            records: list[AuditRecord] = []
            page = AuditPage(before=selection.before)
            while len(records) < limit:
                part = msgspec.structs.replace(selection, before=page.before, size=limit - len(records))
                page = await self._audit_page(server.addr, part)
                records += page.records
                if not page.before:
                    break
            return records

        return await self.ask_all(servers, ask)

    async def _audit_page(self, addr: str, selection: GetAuditLog) -> AuditPage:
        try:
            answer = await self.request(addr, RequestCode.GET_AUDIT_LOG, selection)
        except ReplyError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ReplyError(error.code, NOT_SUPPORTED, addr) from None
            raise
        return fastjson.decode(answer.body, AuditPage)
