"""A Kubernetes Lease (`coordination.k8s.io/v1`) as coordination service, by its JSON API.

    metadata.annotations   ariane/record   the record, JSON
                           ariane/lease    identifies the current lease, another text with each renewal; empty while it is free
    spec                   holderIdentity, leaseDurationSeconds, acquireTime, renewTime, leaseTransitions: for people, never read

Each write reads the object, checks its condition, and replaces the object with its `resourceVersion`: the API server refuses that
with 409 if anything changed in between. A write without a response may be applied later, until something else changes the object.

Nothing ends a Lease. A client takes it as free once it has seen the same `ariane/lease` for the longer of both ttls by its own
CLOCK_BOOTTIME, counted from the response that showed it first: a candidate that has just started waits a whole ttl. The times in
`spec` are of other machines' wall clocks, and are not compared with any clock.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ariane.errors import ConfigError, ConnectionLost, CoordinationUnavailable, InvalidLeaderRecord, ProtocolError
from ariane.failover.coordination import UNKNOWN_RESULT, RecordSnapshot, WriteOutcome, WriteResult
from ariane.failover.json_http import JsonEndpoint, JsonResponse
from ariane.failover.leader_record import LeaderRecord, decode_record, encode_record

log = logging.getLogger("ariane.failover")

SCHEME = "kubernetes+"
RECORD, LEASE = "ariane/record", "ariane/lease"
OK, CREATED, NOT_FOUND, CONFLICT = 200, 201, 404, 409
REJECTED = frozenset({400, 401, 403, 422})  # arguments, account, rights: whichever server answers
ABSENT = RecordSnapshot(None, "", "")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
Object = dict[str, Any]


class LeaseClock(Protocol):
    """The clock by which a lease without renewals ends."""

    def boottime(self) -> float:
        """Return seconds since an arbitrary instant, suspended time included (CLOCK_BOOTTIME)."""
        ...


class _Unanswered(Exception):
    """No usable response: the request may have been executed."""


class KubernetesCoordination:
    """The record of one broker set in a Lease."""

    def __init__(
        self,
        endpoints: Sequence[str],
        name: str,
        *,
        ttl_s: int,
        clock: LeaseClock,
        attempt_s: float = 1.5,
        access: KubernetesAccess | None = None,
    ) -> None:
        """Prepare a client; it connects with the first call.

        Args:
            endpoints: `kubernetes+https://host:port/namespace` of the API servers, in the order in which they are tried.
            name: Name of the Lease.
            ttl_s: Life of a lease in seconds.
            clock: CLOCK_BOOTTIME.
            attempt_s: Time limit of an attempt: a read, and the write that depends on it. A call has two attempts.
            access: Token and certificates; None: neither.

        Raises:
            ConfigError: an argument is invalid.
        """
        if not _NAME.fullmatch(name):
            fix = "expected the name of a Lease: lower-case letters, digits, '-' and '.', at most 253"
            raise ConfigError("failoverPrefix", name, fix)
        parsed = [_parse(url) for url in endpoints]
        if not parsed or len({namespace for _, namespace in parsed}) > 1:
            raise ConfigError("failoverEndpoints", ";".join(endpoints), "expected endpoints with one namespace")
        self._access = access or KubernetesAccess()
        self._endpoints = [JsonEndpoint(url, tls=self._access.tls) for url, _ in parsed]
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{parsed[0][1]}/leases"
        self._name, self._ttl_s, self._attempt_s, self._clock = name, ttl_s, attempt_s, clock
        self._seen = ("", 0.0)  # a lease, and when it was seen first
        self._busy = asyncio.Lock()

    async def read(self) -> RecordSnapshot:
        """Return the current state. A read without a `resourceVersion` is linearizable."""
        async with self._busy:
            failures: list[str] = []
            for _ in range(2):
                try:
                    async with self._attempt():
                        return self._snapshot(await self._get())
                except _Unanswered as error:
                    failures.append(str(error))
            raise CoordinationUnavailable(f"The Lease {self._name} cannot be read: {'; '.join(failures)}")

    async def create(self, record: LeaderRecord) -> WriteResult:
        """Store the first record: create the Lease."""

        def change(stored: Object | None) -> Object | None:
            return self._with_record({"metadata": {"name": self._name}}, record) if stored is None else None

        return await self._write(change, lambda snapshot: _token(snapshot) == record.token)

    async def acquire(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        """Store `record` with a new lease."""

        def change(stored: Object | None) -> Object | None:
            snapshot = self._snapshot(stored)
            if stored is None or snapshot.version != expected.version or snapshot.lease:
                return None
            return self._with_lease(self._with_record(stored, record), record.holder)

        return await self._write(change, lambda snapshot: _token(snapshot) == record.token)

    async def renew(self, expected: RecordSnapshot) -> WriteResult:
        """Give the Lease another `ariane/lease`."""
        granted: set[str] = set()

        def change(stored: Object | None) -> Object | None:
            snapshot = self._snapshot(stored)
            if stored is None or snapshot.record is None or not expected.lease or snapshot.lease != expected.lease:
                return None
            renewed = self._with_lease(stored, snapshot.record.holder)
            granted.add(_annotation(renewed, LEASE))
            return renewed

        return await self._write(change, lambda snapshot: snapshot.lease in granted)

    async def swap(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        """Store `record` under the lease."""

        def change(stored: Object | None) -> Object | None:
            return self._with_record(stored, record) if stored and self._is_held(stored, expected) else None

        return await self._write(change, lambda snapshot: _token(snapshot) == record.token)

    async def release(self, expected: RecordSnapshot, record: LeaderRecord) -> WriteResult:
        """Store `record`, and leave the Lease without a holder."""

        def change(stored: Object | None) -> Object | None:
            if not stored or not self._is_held(stored, expected):
                return None
            return self._with_lease(self._with_record(stored, record), "")

        return await self._write(change, lambda snapshot: _token(snapshot) == record.token)

    async def close(self) -> None:
        """Close the connections."""
        for endpoint in self._endpoints:
            await endpoint.close()

    # --- the object ---

    def _snapshot(self, stored: Object | None) -> RecordSnapshot:
        """Return the state of the object. The version is the token of the record: each write of a record has another one.

        Raises:
            InvalidLeaderRecord: the Lease is of another program.
        """
        if stored is None:
            return ABSENT
        text = _annotation(stored, RECORD)
        if not text:
            raise InvalidLeaderRecord(f"The Lease {self._name} has no annotation {RECORD}: is it of another program?")
        record, lease, now = decode_record(text.encode()), _annotation(stored, LEASE), self._clock.boottime()
        if lease != self._seen[0]:
            self._seen = (lease, now)
        duration = stored.get("spec", {}).get("leaseDurationSeconds")
        ttl_s = max(self._ttl_s, duration if isinstance(duration, int) else 0)
        return RecordSnapshot(record, record.token, "" if now - self._seen[1] >= ttl_s else lease)

    def _is_held(self, stored: Object, expected: RecordSnapshot) -> bool:
        """Return whether the record is `expected`, under the lease of its holder: who takes a lease writes a record."""
        snapshot = self._snapshot(stored)
        return bool(expected.lease) and bool(snapshot.lease) and snapshot.version == expected.version

    def _with_record(self, stored: Object, record: LeaderRecord) -> Object:
        changed = copy.deepcopy(stored)
        changed["metadata"].setdefault("annotations", {})[RECORD] = encode_record(record).decode()
        changed.setdefault("spec", {})["leaseTransitions"] = record.epoch
        return changed

    def _with_lease(self, stored: Object, holder: str) -> Object:
        """Return the object with another lease; without a holder it is free."""
        changed, now = (
            copy.deepcopy(stored),
            datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        )
        changed["metadata"]["annotations"][LEASE] = secrets.token_hex(8) if holder else ""
        spec = changed.setdefault("spec", {})
        if holder != spec.get("holderIdentity"):
            spec["acquireTime"] = now
        spec |= {"holderIdentity": holder, "leaseDurationSeconds": self._ttl_s, "renewTime": now}
        return changed

    # --- requests ---

    async def _write(
        self, change: Callable[[Object | None], Object | None], is_applied: Callable[[RecordSnapshot], bool]
    ) -> WriteResult:
        """Replace the object by what `change` returns; None: its condition does not hold. Two attempts."""
        async with self._busy:
            for _ in range(2):
                try:
                    async with self._attempt():
                        stored = await self._get()
                        if (wanted := change(stored)) is None:
                            snapshot = self._snapshot(stored)
                            outcome = WriteOutcome.DONE if is_applied(snapshot) else WriteOutcome.REFUSED
                            return WriteResult(outcome, snapshot)
                        written = await self._put(wanted, is_new=stored is None)
                except _Unanswered as error:
                    log.debug("No answer about the Lease %s: %s", self._name, error)
                    continue
                if written is not None:  # otherwise it changed in between: the next attempt compares it again
                    return WriteResult(WriteOutcome.DONE, self._snapshot(written))
        return UNKNOWN_RESULT

    async def _get(self) -> Object | None:
        response = await self._request("GET", f"{self._path}/{self._name}")
        return None if response.status == NOT_FOUND else response.body

    async def _put(self, wanted: Object, *, is_new: bool) -> Object | None:
        """Write the object; return it as it is stored, None if another write was before."""
        wanted = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"} | wanted
        method, path = ("POST", self._path) if is_new else ("PUT", f"{self._path}/{self._name}")
        response = await self._request(method, path, wanted)
        return None if response.status in (CONFLICT, NOT_FOUND) else response.body

    @asynccontextmanager
    async def _attempt(self) -> AsyncIterator[None]:
        """Limit the time of an attempt. An endpoint that does not answer is tried last."""
        endpoint = self._endpoints[0]
        try:
            async with asyncio.timeout(self._attempt_s):
                yield
        except (ConnectionLost, ProtocolError, TimeoutError, _Unanswered) as error:
            self._endpoints = [*self._endpoints[1:], endpoint]
            raise _Unanswered(str(error) or f"{endpoint.addr} did not answer in time") from error

    async def _request(self, method: str, path: str, body: Object | None = None) -> JsonResponse:
        endpoint = self._endpoints[0]
        response = await endpoint.request(method, path, body, headers=self._access.headers())
        if response.status in (OK, CREATED, NOT_FOUND, CONFLICT):
            return response
        message = f"{endpoint.addr} answered {response.status}: {response.body.get('message', '')}"
        if response.status in REJECTED:
            log.error("The Lease %s cannot be used: %s", self._name, message)
        raise _Unanswered(message)


class KubernetesAccess:
    """How a client proves its account: a file with a token, which Kubernetes replaces every hour."""

    def __init__(self, token_file: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self._token_file = token_file

    def headers(self) -> dict[str, str]:
        """Return the headers of a request; without the token if its file cannot be read, and the server refuses it then."""
        if not self._token_file:
            return {}
        try:
            token = Path(self._token_file).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            log.error("The token of the Kubernetes API cannot be read: %s", error)
            return {}
        return {"Authorization": f"Bearer {token}"}


def _parse(url: str) -> tuple[str, str]:
    """Return the URL of an API server, and the namespace."""
    parts = urlsplit(url.removeprefix(SCHEME))
    namespace = parts.path.strip("/")
    if not url.startswith(SCHEME) or not _NAME.fullmatch(namespace):
        raise ConfigError("failoverEndpoints", url, "expected kubernetes+https://host:port/namespace")
    return f"{parts.scheme}://{parts.netloc}", namespace


def _annotation(stored: Object, name: str) -> str:
    return str(stored.get("metadata", {}).get("annotations", {}).get(name, ""))


def _token(snapshot: RecordSnapshot) -> str:
    return snapshot.record.token if snapshot.record is not None else ""
