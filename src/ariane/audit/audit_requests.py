"""GET_AUDIT_LOG (14001): the audit log of a server, for admins."""

from __future__ import annotations

import msgspec

from ariane.audit.server_audit_log import ServerAuditLog
from ariane.net.replies import HandlerResult, Peer, Reply
from ariane.protocol.codes import ResponseCode
from ariane.protocol.command import Command
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.audit import GetAuditLog

DISABLED = "the audit log of this server is off: set auditLogEnable=true in its configuration file and restart it"
UNPROTECTED = (
    "without access control anybody could read the audit log: set aclEnable=true in the configuration file and restart the server,"
    " or read its files with `ariane audit --directory` on its machine"
)


class AuditHandler:
    """Serves pages of the audit log.

    Args:
        audit: The log; None if it is off.
        is_protected: Whether access control permits the request to admins only.
    """

    def __init__(self, audit: ServerAuditLog | None, *, is_protected: bool) -> None:
        self._audit = audit
        self._is_protected = is_protected

    def read(self, command: Command, peer: Peer) -> HandlerResult:
        """Handle GET_AUDIT_LOG."""
        if self._audit is None:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=DISABLED)
        if not self._is_protected:
            return Reply(ResponseCode.NO_PERMISSION, remark=UNPROTECTED)
        return self._read(self._audit, decode_header(command, GetAuditLog))

    async def _read(self, audit: ServerAuditLog, selection: GetAuditLog) -> Reply:
        page = await audit.read(selection)
        return Reply(body=msgspec.json.encode(page))
