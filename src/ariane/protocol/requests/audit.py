"""Records of a server's audit log, and the request for them: GET_AUDIT_LOG (14001, of Ariane).

{"number":17,"timeMs":…,"server":"broker-a:0","request":"DELETE_TOPIC_IN_BROKER","result":"done","resource":"topic:orders",
 "account":"shop-admin","proof":"signature","address":"10.0.0.5:41022"}
"""

from __future__ import annotations

import msgspec

from ariane.protocol.codes import RequestCode

DONE, FAILED, REFUSED = "done", "failed", "refused"
UNKNOWN = "unknown"  # the connection closed before the change was answered
LOST = "lost"  # records that could not be written
RESULTS = (DONE, FAILED, REFUSED, UNKNOWN, LOST)
FAILURES_KEY = "auditLogFailures"  # Ariane's own, in the runtime information of a broker: `AuditState.describe`


class AuditRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A change of a server, or a request that was refused."""

    number: int
    """Count of the server's records, with this one. A gap shows that records are missing."""
    time_ms: int
    """Time of the answer."""
    server: str
    """Name of the server; of a broker with its id."""
    request: str
    """Name of the request code."""
    result: str
    """One of RESULTS."""
    resource: str = ""
    """What the request names: topics, groups, accounts, keys of settings."""
    account: str = ""
    """Access key of the request, or account of the certificate."""
    proof: str = ""
    """How the account is proven: `signature` or `certificate`; empty: not at all."""
    certificate: str = ""
    """Names of the client's verified certificate."""
    address: str = ""
    """Where the request came from."""
    reason: str = ""
    """Why it failed or was refused, or a remark of the answer."""
    count: int = 1
    """Requests that the record stands for."""


class GetAuditLog(msgspec.Struct, frozen=True, rename="camel"):
    """GET_AUDIT_LOG (14001): which records to return. Empty texts select all."""

    since_ms: int = 0
    """Earliest time."""
    until_ms: int = 0
    """First time that is too late; 0: none."""
    account: str = ""
    """Access key."""
    address: str = ""
    """Beginning of the address."""
    request: str = ""
    """Name of the request code, or its number."""
    resource: str = ""
    """Part of the resource."""
    result: str = ""
    """One of RESULTS."""
    before: int = 0
    """Only records with smaller numbers; 0: all."""
    after: int = 0
    """Only records with greater numbers."""
    size: int = 100
    """Records of a page."""

    def matches(self, record: AuditRecord) -> bool:
        """Return whether a record is selected."""
        return (
            record.time_ms >= self.since_ms
            and (not self.until_ms or record.time_ms < self.until_ms)
            and (not self.before or record.number < self.before)
            and record.number > self.after
            and (not self.account or record.account == self.account)
            and record.address.startswith(self.address)
            and (not self.request or record.request == request_name(self.request))
            and self.resource in record.resource
            and (not self.result or record.result == self.result)
        )


class AuditPage(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to GET_AUDIT_LOG."""

    records: tuple[AuditRecord, ...] = ()
    """The newest first."""
    before: int = 0
    """`GetAuditLog.before` of the next page; 0: there is none."""


def request_name(text: str) -> str:
    """Return the name of a request by its name in any case, or its number."""
    name = text.strip().upper()
    if name.isdecimal() and int(name) in list(RequestCode):
        return RequestCode(int(name)).name
    return name
