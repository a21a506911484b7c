"""etcd as coordination service, by its JSON gateway (`/v3/`, etcd 3.4 and later).

    PREFIX/record   the record; permanent
    PREFIX/lease    exists while a member holds the lease; bound to an etcd lease

Each write is one transaction that compares both keys. A renewal grants a new etcd lease and binds the key to it: grant and put are
entries of etcd's log, so that a leader without quorum cannot confirm them. (Its keep-alives are answered from memory: etcd 3.4.23
confirmed them for more than a second after its quorum was lost.)

Endpoints are tried in turn. A transaction without a response may be applied, also later. The next attempt repeats it with the same
content, and the state that refuses it shows whether an earlier attempt was applied.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Sequence
from typing import Any, NamedTuple

from ariane.errors import ConfigError, ConnectionLost, CoordinationUnavailable, ProtocolError
from ariane.failover.coordination import (
    UNKNOWN_RESULT,
    RecordSnapshot,
    WriteOutcome,
    WriteResult,
)
from ariane.failover.json_http import JsonEndpoint, JsonResponse
from ariane.failover.leader_record import LeaderRecord, decode_record, encode_record

log = logging.getLogger("ariane.failover")

OK = 200
# Codes of gRPC that say that a request was refused, whichever member answers (the gateway of 3.4 and that of 3.6 both send `code`).
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED = 3, 5, 7, 16
REJECTED = frozenset({INVALID_ARGUMENT, PERMISSION_DENIED, UNAUTHENTICATED})
ETCD_MESSAGE = "etcdserver: "  # begin of etcd's own messages
LEASE_LOST = "lease not found"  # in the message of code 5: the lease of a transaction ended before it
FREE = ""


class EtcdCredentials(NamedTuple):
    """A user of etcd. Its role needs READWRITE on the prefix."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"EtcdCredentials({self.user!r}, '…')"


class _NoAnswer(Exception):
    """An endpoint did not answer, or answered that it could not decide."""


class _Rejected(Exception):
    """The request was not executed: arguments, rights."""


class EtcdCoordination:
    """The record of one broker set in etcd."""

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        *,
        ttl_s: int,
        attempt_s: float = 1.5,
        tls: ssl.SSLContext | None = None,
        credentials: EtcdCredentials | None = None,
    ) -> None:
        """Prepare a client; it connects with the first call.

        Args:
            endpoints: `http://host:port` or `https://host:port` of etcd's members, in the order in which they are tried.
            prefix: Key prefix of the broker set, such as `/ariane/cluster/broker-a`.
            ttl_s: Life of a lease in seconds, at least 2.
            attempt_s: Time limit per endpoint. A call tries two endpoints and takes twice as long at most.
            tls: Certificates for https.
            credentials: User and password, if etcd has users.

        Raises:
            ConfigError: an argument is invalid.
        """
        if ttl_s < 2:
            raise ConfigError("ttl", str(ttl_s), "etcd grants leases of at least 2 s")
        if not endpoints:
            raise ConfigError("endpoints", "", "name at least one as http://host:port")
        self._endpoints = [JsonEndpoint(url, tls=tls) for url in endpoints]
        self._ttl_s = ttl_s
        self._attempt_s = attempt_s
        self._credentials = credentials
        self._tokens: dict[str, str] = {}  # of the user, by endpoint
        self._cluster_id = ""  # of the first answer: all endpoints must belong to one etcd cluster
        self._record_key = _encode(f"{prefix.rstrip('/')}/record".encode())
        self._lease_key = _encode(f"{prefix.rstrip('/')}/lease".encode())
        self._busy = asyncio.Lock()

    async def read(self) -> RecordSnapshot:
        """Return the current state, from a linearizable read."""
        # An empty transaction of two reads: both keys at one revision.
        async with self._busy:
            failures: list[str] = []
            for endpoint in self._attempts():
                try:
                    async with asyncio.timeout(self._attempt_s):
                        return _snapshot(await self._call(endpoint, "kv/txn", {"success": self._reads()}))
                except (_NoAnswer, _Rejected, TimeoutError) as error:
                    failures.append(f"{endpoint.addr} {error or 'did not answer in time'}")
            raise CoordinationUnavailable(f"etcd cannot be read: {'; '.join(failures)}")

    async def create(self, record: LeaderRecord) -> WriteResult:
        """Store the first record."""
        compares = [_compare(self._record_key, "CREATE", "create_revision", "0")]
        return await self._write(compares, [self._put(record)], record.token)

    async def acquire(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        """Store `record` with a new lease."""
        compares = [
            _compare(self._lease_key, "CREATE", "create_revision", "0"),
            _compare(self._record_key, "MOD", "mod_revision", expected.version),
        ]
        holder = {"request_put": {"key": self._lease_key, "value": _encode(record.holder.encode())}}
        return await self._write(compares, [holder, self._put(record)], None)

    async def renew(self, expected: RecordSnapshot) -> WriteResult:
        """Bind the lease key to a new etcd lease."""
        if expected.lease == FREE:
            return WriteResult(WriteOutcome.REFUSED, expected)
        created, _, lease_id = expected.lease.partition(":")
        # The old lease is compared, too: a delayed renewal would otherwise replace a newer lease by its older one.
        compares = [
            _compare(self._lease_key, "CREATE", "create_revision", created),
            _compare(self._lease_key, "LEASE", "lease", lease_id),
        ]
        holder = {"request_put": {"key": self._lease_key, "ignore_value": True}}
        return await self._write(compares, [holder], None)

    async def swap(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        """Store `record` under the lease."""
        return await self._write(self._under_lease(expected), [self._put(record)], record.token)

    async def release(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        """Store `record` and delete the lease key."""
        changes = [self._put(record), {"request_delete_range": {"key": self._lease_key}}]
        return await self._write(self._under_lease(expected), changes, record.token)

    async def close(self) -> None:
        """Close the connections."""
        for endpoint in self._endpoints:
            await endpoint.close()

    # --- transactions ---

    def _reads(self) -> list[dict[str, Any]]:
        return [{"request_range": {"key": key}} for key in (self._record_key, self._lease_key)]

    def _put(self, record: LeaderRecord) -> dict[str, Any]:
        return {"request_put": {"key": self._record_key, "value": _encode(encode_record(record))}}

    def _under_lease(self, expected: RecordSnapshot) -> list[dict[str, Any]]:
        created = expected.lease.partition(":")[0]
        # CREATE = 0 would be an absent lease key; -1 never exists, so that a write without a lease is refused.
        return [
            _compare(self._lease_key, "CREATE", "create_revision", created or "-1"),
            _compare(self._record_key, "MOD", "mod_revision", expected.version),
        ]

    async def _write(
        self, compares: list[dict[str, Any]], changes: list[dict[str, Any]], token: str | None
    ) -> WriteResult:
        """Execute a transaction at up to two endpoints.

        Args:
            compares: Conditions.
            changes: Writes.
            token: Token of the record that identifies this write; None: grant a lease before each attempt,
                and bind the first change to it.
        """
        granted: set[str] = set()
        request = {"compare": compares, "success": changes + self._reads(), "failure": self._reads()}
        async with self._busy:
            for endpoint in self._attempts():
                try:
                    async with asyncio.timeout(self._attempt_s):
                        if token is None:
                            lease = await self._call(endpoint, "lease/grant", {"TTL": self._ttl_s})
                            changes[0]["request_put"]["lease"] = lease["ID"]
                            granted.add(lease["ID"])
                        answer = await self._call(endpoint, "kv/txn", request)
                        snapshot = _snapshot(answer)
                except (_NoAnswer, TimeoutError) as error:
                    log.debug("No answer of etcd at %s: %s", endpoint.addr, error or "time limit")
                except _Rejected as error:
                    log.error("etcd at %s rejected a write: %s", endpoint.addr, error)
                else:
                    # A refusal that shows this write's token or lease means that an earlier attempt was applied.
                    is_own = _lease_id(snapshot) in granted if token is None else _token(snapshot) == token
                    is_done = is_own or bool(answer.get("succeeded"))
                    return WriteResult(WriteOutcome.DONE if is_done else WriteOutcome.REFUSED, snapshot)
        return UNKNOWN_RESULT

    # --- requests ---

    def _attempts(self) -> list[JsonEndpoint]:
        """Return the endpoints of a call, two if there are as many. One that fails moves to the end of the list."""
        return (self._endpoints * 2)[:2] if len(self._endpoints) == 1 else self._endpoints[:2]

    async def _call(self, endpoint: JsonEndpoint, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response = await self._post(endpoint, path, body)
        except (ConnectionLost, ProtocolError) as error:
            self._demote(endpoint)
            raise _NoAnswer(str(error)) from error
        except asyncio.CancelledError:
            self._demote(endpoint)
            raise
        if response.status == OK:
            cluster_id = str(response.body.get("header", {}).get("cluster_id", ""))
            self._cluster_id = self._cluster_id or cluster_id
            if cluster_id == self._cluster_id:
                return response.body
            raise _Rejected(f"belongs to another etcd cluster ({cluster_id}, expected {self._cluster_id})")
        code, message = response.body.get("code"), str(response.body.get("message", ""))
        code = code if isinstance(code, int) else None  # a proxy may have put anything there
        if code in REJECTED or (code == NOT_FOUND and LEASE_LOST not in message):
            raise _Rejected(f"refused the request (status {response.status}, code {code}): {message}")
        self._demote(endpoint)
        raise _NoAnswer(f"failed (status {response.status}, code {code}): {message}")

    async def _post(self, endpoint: JsonEndpoint, path: str, body: dict[str, Any]) -> JsonResponse:
        """Send a request, as the user if there is one. Tokens expire: the second attempt has a new one."""
        for is_last in (False, True):
            headers = {}
            if self._credentials is not None:
                if endpoint.addr not in self._tokens:
                    name, password = self._credentials
                    answer = await endpoint.request(
                        "POST", "/v3/auth/authenticate", {"name": name, "password": password}
                    )
                    if answer.status != OK:
                        return answer._replace(body=_of_etcd(answer.body))
                    if not isinstance(token := answer.body.get("token"), str):
                        raise ProtocolError("The response to the log-in has no token")
                    self._tokens[endpoint.addr] = token
                headers["Authorization"] = self._tokens[endpoint.addr]
            response = await endpoint.request("POST", f"/v3/{path}", body, headers=headers)
            if response.body.get("code") != UNAUTHENTICATED or self._credentials is None or is_last:
                return response
            del self._tokens[endpoint.addr]
        raise AssertionError("unreachable")

    def _demote(self, endpoint: JsonEndpoint) -> None:
        if endpoint in self._endpoints:
            self._endpoints.remove(endpoint)
            self._endpoints.append(endpoint)


def _of_etcd(error: dict[str, Any]) -> dict[str, Any]:
    """Return the error of a log-in without a message that is not etcd's: a proxy may echo the password in it."""
    message = str(error.get("message", ""))
    return error if message.startswith(ETCD_MESSAGE) else error | {"message": "the user cannot log in"}


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _compare(key: str, target: str, field: str, value: str) -> dict[str, Any]:
    return {"key": key, "target": target, "result": "EQUAL", field: value}


def _token(snapshot: RecordSnapshot) -> str | None:
    return snapshot.record.token if snapshot.record is not None else None


def _lease_id(snapshot: RecordSnapshot) -> str:
    return snapshot.lease.partition(":")[2]


def _snapshot(answer: dict[str, Any]) -> RecordSnapshot:
    """Return the state from the two reads at the end of a transaction's responses. Absent members of the JSON are zero."""
    try:
        record, lease = (response["response_range"].get("kvs", []) for response in answer["responses"][-2:])
        data = base64.b64decode(record[0]["value"]) if record else None
        version = str(record[0]["mod_revision"]) if record else "0"
        lease_id = f"{lease[0]['create_revision']}:{lease[0].get('lease', '0')}" if lease else FREE
    except (KeyError, ValueError) as error:
        raise _NoAnswer(f"sent an incomplete response ({error})") from error
    return RecordSnapshot(decode_record(data) if data is not None else None, version, lease_id)
