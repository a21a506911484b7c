"""Runs of sends and pulls with access control: permitted ones are served by the turns of brokers without it.

    received data → SignatureChecker (`core`) ─ once per run and resource → Acl.denial_reason
                  → frames without signatures → SendTurns, PullTurns → position in the received data

A run ends before the first request that is refused, or that the checker leaves to the check of single requests (`AccessControl`),
which alone refuses. From an address that needs no account, the data is served as it was received.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from ariane.access.access_control import AccessControl
from ariane.access.acl import Acl
from ariane.broker.access.request_permissions import RUN_FIELDS
from ariane.kernels.implementation import selected
from ariane.kernels.signed_runs import SignatureChecker, SignedRun
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.replies import Peer, ServedTurn, TurnHandler
from ariane.protocol.signing import ACCESS_KEY

FRAMES_MAX = 128  # of a run
DECISIONS_MAX = 10_000  # remembered; beyond, all are made again

# The sender (address, names of the certificate, access key), code, values of its fields.
_Subject = tuple[str, tuple[str, ...], str, int, tuple[str | None, ...]]


class SignedTurns:
    """Serves runs of permitted requests by other turns. [TurnHandler]

    Args:
        turns: Serves the requests.
        access: Decides about them.
        fields: Codes of the requests, with the extFields that the decision depends on.
        limits: Size of a header.
    """

    def __init__(
        self,
        *,
        turns: TurnHandler,
        access: AccessControl,
        fields: Mapping[int, tuple[str, ...]],
        limits: ServerLimits,
    ) -> None:
        self._turns = turns
        self._access = access
        self._fields = fields
        self._limits = limits
        self._acl: Acl | None = None  # rules of the checker, of the decisions and of the run
        self._checker: SignatureChecker | None = None  # created for `_acl` with the first request
        self._decisions: dict[_Subject, bool] = {}
        # The last run, with the data and the peer that it came from. Its requests may be served by several turns, and some of them
        # one by one: each is verified once.
        self._run: SignedRun | None = None
        self._data = b""
        self._peer: Peer | None = None

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn | None:
        """Serve the permitted requests in `data` from `position` on. [TurnHandler.serve]"""
        acl = self._access.state.acl
        if acl.is_open_to(peer.ip):
            return self._turns.serve(data, position, peer, waited_s)
        if acl is not self._acl:
            self._acl, self._run, self._decisions = acl, None, {}
            self._checker = selected().signature_checker(acl.secret_keys(), self._fields)
        run = self._run
        if run is None or data is not self._data or peer is not self._peer or not _has_frame_at(run, position):
            run = self._run = self._check(acl, data, position, peer)
            self._data, self._peer = data, peer
            if not _has_frame_at(run, position):
                return None
        first = bisect_left(run.positions, position)
        turn = self._turns.serve(run.frames, run.starts[first], peer, waited_s)
        if turn is None:
            return None
        last = bisect_left(run.starts, turn.position)
        if last + 1 == len(run.starts):
            self._run, self._data = None, b""  # release memory
        return turn._replace(position=run.positions[last])

    def _check(self, acl: Acl, data: bytes, position: int, peer: Peer) -> SignedRun:
        assert self._checker is not None

        def permit(access_key: str, code: int, values: tuple[str | None, ...]) -> bool:
            subject = (peer.ip, peer.names, access_key, code, values)
            decision = self._decisions.get(subject)
            if decision is None:
                decision = self._decide(acl, peer, access_key, code, values)
                if len(self._decisions) >= DECISIONS_MAX:
                    self._decisions.clear()
                self._decisions[subject] = decision
            if not decision:
                return False
            identity = acl.identity({ACCESS_KEY: access_key}, b"", peer.names, is_verified=True)
            # A refusal is left to the check of single requests.
            return not identity.proof or self._limits.quotas.identify(peer.id, identity.account) is None

        return self._checker.check(data, position, self._limits.header_max, FRAMES_MAX, permit)

    def _decide(self, acl: Acl, peer: Peer, access_key: str, code: int, values: Sequence[str | None]) -> bool:
        fields = {name: value for name, value in zip(self._fields[code], values, strict=True) if value is not None}
        if access_key:
            fields[ACCESS_KEY] = access_key
        return acl.denial_reason(code, fields, b"", peer.ip, _no_record, peer.names, is_verified=True) is None


def _has_frame_at(run: SignedRun, position: int) -> bool:
    index = bisect_left(run.positions, position)
    return index < len(run.positions) - 1 and run.positions[index] == position


def _no_record(offset: int) -> None:
    """Return no record: sends and pulls refer to none."""


def with_signatures(
    turns: Mapping[int, TurnHandler], access: AccessControl, limits: ServerLimits
) -> dict[int, TurnHandler]:
    """Return turns by request code that serve only what `access` permits."""
    signed: dict[int, TurnHandler] = {}
    for handler in set(turns.values()):
        fields = {code: RUN_FIELDS[code] for code, serves in turns.items() if serves is handler}
        signed |= dict.fromkeys(fields, SignedTurns(turns=handler, access=access, fields=fields, limits=limits))
    return signed
