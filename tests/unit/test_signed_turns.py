"""Runs of requests with access control: which are served by turns, in which order, and when they are decided about again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from ariane.access.acl import Acl, parse_acl_file
from ariane.broker.access.request_permissions import REQUEST_NEEDS, RUN_FIELDS
from ariane.broker.access.signed_turns import FRAMES_MAX, SignedTurns
from ariane.kernels import implementation
from ariane.net.limits.flow_limits import ServerLimits
from ariane.net.replies import Peer, ServedTurn, make_peer
from ariane.protocol import command as commands
from ariane.protocol import signing
from ariane.protocol.codes import RequestCode
from ariane.protocol.frame import BINARY_FORM, JSON_FORM, FrameReader
from ariane.protocol.requests import decode_header
from ariane.protocol.requests.messaging import LONG_NAMES, SendMessage
from ariane.protocol.signing import Credentials

WRITER = Credentials("writer-account", "writer-secret")
OTHER = Credentials("other-account", "other-secret")
FILE: dict[str, Any] = {
    "globalWhiteRemoteAddresses": ["10.0.0.9"],
    "accounts": [
        {"accessKey": "writer-account", "secretKey": "writer-secret", "topicPerms": ["orders=PUB", "bills=PUB"],
         "clientCertificate": "writer"},
        {"accessKey": "other-account", "secretKey": "other-secret", "topicPerms": ["orders=PUB"]},
    ],
}  # fmt: skip
CODE = RequestCode.SEND_MESSAGE_V2


@pytest.fixture(autouse=True, params=["python", "auto"])
def implementations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(implementation.VARIABLE, request.param)
    implementation.selected.cache_clear()
    yield
    implementation.selected.cache_clear()


class Turns:
    """Serves at most `most` requests of a turn, and none in `refused`, whose bodies name them."""

    def __init__(self, most: int = 1000, refused: frozenset[bytes] = frozenset()) -> None:
        self.served: list[bytes] = []
        self._most = most
        self._refused = refused

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn | None:
        count = 0
        reader = FrameReader()
        for frame in reader.feed(data[position:]):
            if count == self._most or frame.body in self._refused:
                break
            assert signing.SIGNATURE.encode() not in frame.header or peer.ip == "10.0.0.9"
            self.served.append(frame.body)
            position += 8 + len(frame.header) + len(frame.body)
            count += 1
        return ServedTurn(position, count, b"", False) if count else None


def frame(body: bytes, sender: Credentials | None = WRITER, topic: str = "orders") -> bytes:
    fields: Mapping[str, str] = {"b": topic}
    if sender is not None:
        fields = signing.sign(sender, fields, body)
    return b"".join(commands.encode(CODE, opaque=1, flag=0, fields=fields, body=body))


def rules(file: dict[str, Any] = FILE) -> SimpleNamespace:
    return SimpleNamespace(acl=Acl([("plain_acl.yml", parse_acl_file("plain_acl.yml", file))], REQUEST_NEEDS))


def signed_turns(turns: Turns, limits: ServerLimits | None = None) -> tuple[SignedTurns, SimpleNamespace]:
    access = SimpleNamespace(state=rules())
    fields = {CODE: RUN_FIELDS[CODE]}
    limits = limits or ServerLimits()
    return SignedTurns(turns=turns, access=access, fields=fields, limits=limits), access  # type: ignore[arg-type]


PEER = make_peer(1, ("10.0.0.1", 5))


def serve_all(turns: SignedTurns, frames: list[bytes], peer: Peer = PEER) -> list[int]:
    """Return the indexes of the requests that have to be served one by one."""
    data, position, alone = b"".join(frames), 0, []
    starts = {sum(map(len, frames[:index])): index for index in range(len(frames))}
    while position < len(data):
        turn = turns.serve(data, position, peer, 0.0)
        if turn is None:
            alone.append(starts[position])
            position += len(frames[starts[position]])
        else:
            assert turn.requests == starts.get(turn.position, len(frames)) - starts[position]
            position = turn.position
    return alone


def test_permitted_requests_are_served_without_their_signatures() -> None:
    turns = Turns()
    frames = [frame(b"%d" % number) for number in range(2 * FRAMES_MAX + 3)]
    assert serve_all(signed_turns(turns)[0], frames) == []
    assert turns.served == [b"%d" % number for number in range(2 * FRAMES_MAX + 3)]


def test_refused_requests_are_left_to_the_check_of_single_ones() -> None:
    frames = [
        frame(b"0"),
        frame(b"1", Credentials("writer-account", "wrong-secret")),
        frame(b"2"),
        frame(b"3", OTHER),
        frame(b"4", OTHER, "bills"),
        frame(b"5", topic="bills"),
        frame(b"6", None),
        frame(b"7", Credentials("unknown-account", "unknown-secret")),
        frame(b"8", topic=""),
    ]
    turns = Turns()
    assert serve_all(signed_turns(turns)[0], frames) == [1, 4, 6, 7]
    assert turns.served == [b"0", b"2", b"3", b"5", b"8"]


@pytest.mark.parametrize("most", [1, 3])
def test_a_run_is_verified_once_for_several_turns(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(most, frozenset({b"2", b"3", b"9"}))
    signed, _ = signed_turns(turns)
    checks: list[int] = []
    check = signed._check
    monkeypatch.setattr(signed, "_check", lambda *args: checks.append(args[2]) or check(*args))
    frames = [frame(b"%d" % number) for number in range(10)]
    assert serve_all(signed, frames) == [2, 3, 9]
    assert turns.served == [b"%d" % number for number in range(9) if number not in (2, 3)]
    assert checks == [0]


def test_other_data_and_other_peers_are_verified_by_themselves() -> None:
    turns = Turns(1)
    signed, _ = signed_turns(turns)
    data = frame(b"0") + frame(b"1")
    assert signed.serve(data, 0, PEER, 0.0) is not None
    assert signed.serve(frame(b"0") + frame(b"?", OTHER, "bills"), len(frame(b"0")), PEER, 0.0) is None
    assert signed.serve(data, 0, PEER, 0.0) is not None
    other = make_peer(2, ("10.0.0.2", 5))
    assert signed.serve(data, len(frame(b"0")), other, 0.0) is not None
    assert turns.served == [b"0", b"0", b"1"]


def test_changed_rules_hold_for_the_rest_of_a_run() -> None:
    turns = Turns(1)
    signed, access = signed_turns(turns)
    data = frame(b"0") + frame(b"1")
    first = signed.serve(data, 0, PEER, 0.0)
    assert first is not None
    access.state = rules({"accounts": [{**FILE["accounts"][0], "topicPerms": ["orders=SUB"]}]})
    assert signed.serve(data, first.position, PEER, 0.0) is None
    access.state = rules({"accounts": [{**FILE["accounts"][0], "secretKey": "changed-secret"}]})
    assert signed.serve(data, first.position, PEER, 0.0) is None
    access.state = rules()
    assert signed.serve(data, first.position, PEER, 0.0) is not None


def test_addresses_that_need_no_account_take_turns() -> None:
    turns = Turns()
    peer = make_peer(1, ("10.0.0.9", 5))
    frames = [frame(b"0", None), frame(b"1"), frame(b"2", Credentials("writer-account", "wrong-secret"))]
    assert serve_all(signed_turns(turns)[0], frames, peer) == []
    assert turns.served == [b"0", b"1", b"2"]


def test_accounts_of_certificates_take_turns() -> None:
    turns = Turns()
    peer = make_peer(1, ("10.0.0.1", 5), ("writer",))
    frames = [frame(b"0", None), frame(b"1", None, "other"), frame(b"2", None), frame(b"3", OTHER, "orders")]
    signed, _ = signed_turns(turns)
    assert serve_all(signed, frames, peer) == [1]
    assert turns.served == [b"0", b"2", b"3"]
    assert serve_all(signed, frames[:1]) == [0]  # the decision is that about another peer


@pytest.mark.parametrize(
    ("names", "sender"), [((), WRITER), (("writer",), None)], ids=["signature", "certificate"]
)  # fmt: skip
def test_runs_count_for_their_account(names: tuple[str, ...], sender: Credentials | None) -> None:
    limits = ServerLimits()
    limits.quotas.set_limits({"accountConnectionsMax": 1})
    turns = Turns()
    signed, _ = signed_turns(turns, limits)
    for number in (1, 2):
        limits.quotas.open(number, "10.0.0.1")
    assert serve_all(signed, [frame(b"0", sender)], make_peer(1, ("10.0.0.1", 5), names)) == []
    assert serve_all(signed, [frame(b"1", sender)], make_peer(2, ("10.0.0.1", 6), names)) == [0]
    assert turns.served == [b"0"]


def test_decisions_depend_on_the_fields_of_runs_only() -> None:
    """The rule of single requests reads no field that runs do not have."""

    class Fields(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            return self.get(name)

        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return "orders"

    for code, names in RUN_FIELDS.items():
        read: set[str] = set()
        needs = REQUEST_NEEDS[code]
        needs.permissions(Fields(), b"")
        assert read == set(names)
        assert needs.message is None


@pytest.mark.parametrize("form", [JSON_FORM, BINARY_FORM])
def test_the_topic_that_is_checked_is_the_one_that_is_stored_to(form: int) -> None:
    """SEND_MESSAGE names it `topic`, SEND_MESSAGE_V2 names it `b`; a request may have both."""
    fields = {
        "producerGroup": "G", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "b": "bills",
    }  # fmt: skip
    pieces = commands.encode(RequestCode.SEND_MESSAGE, opaque=1, flag=0, fields=fields, form=form)
    [received] = FrameReader().feed(b"".join(pieces))
    assert decode_header(commands.decode(received), SendMessage, LONG_NAMES).topic == "orders"


def test_a_connection_counts_for_the_account_of_its_run() -> None:
    turns = Turns()
    signed, _ = signed_turns(turns)
    quotas = signed._limits.quotas
    quotas.set_limits({"accountConnectionsMax": 1})
    for number in (1, 2, 3):
        quotas.open(number, "10.0.0.1")
    assert serve_all(signed, [frame(b"a")], make_peer(1, ("10.0.0.1", 1))) == []
    assert serve_all(signed, [frame(b"b")], make_peer(2, ("10.0.0.1", 2))) == [
        0
    ]  # refused by the check of single requests
    assert serve_all(signed, [frame(b"c", OTHER)], make_peer(3, ("10.0.0.1", 3))) == []
    assert [quotas.server.connections[number].account for number in (1, 2, 3)] == [
        "writer-account",
        None,
        "other-account",
    ]
