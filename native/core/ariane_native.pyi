"""Native core of Ariane. `kernels.implementation` decides whether it is used."""

from collections.abc import Callable, Sequence, Set
from typing import Any

INTERFACE_VERSION: int
"""Of the classes below; `kernels.implementation` expects one."""

VERSION: str
"""Of the distribution."""

_QueueEntries = tuple[str, int, bytes, int, int]  # topic, queue id, entries, sends, bytes of the records
# position, sends, records, queues, keys, responses
_SendRun = tuple[int, int, bytes, list[_QueueEntries], bytes, bytes]

class SendEncoder:
    """`kernels.sends.send_turn.SendEncoder`. Raises ValueError or TypeError for invalid arguments, whatever `data` contains."""

    frames_max: int

    def __init__(
        self,
        *,
        store_host: bytes,
        cluster: str,
        region: str,
        trace_on: bool,
        header_max: int,
        body_max: int,
        is_indexed: bool,
        exceptional: Set[str],
    ) -> None: ...
    def encode(
        self,
        data: bytes,
        position: int,
        born_host: bytes,
        log_end: tuple[int, int, int],
        next_offset: Callable[[str, int], int],
    ) -> _SendRun: ...

class GrpcPort:
    """`kernels.grpc_port.GrpcPort`. Not on Windows. Raises OSError if the port is in use."""

    port: int
    def __init__(
        self,
        address: str,
        port: int,
        *,
        methods: Set[str],
        tls_mode: str,
        takes_plain_calls: bool,
        reserved: tuple[Set[str], Sequence[str]],
    ) -> None: ...
    def fileno(self) -> int: ...
    def take(self) -> tuple[list[tuple[Any, ...]], list[PlainSends], list[PlainAcks]]: ...
    def reply(self, call: int, message: bytes) -> None: ...
    def message(self, call: int, message: bytes, wants_room: bool) -> None: ...
    def messages(self, call: int, framed: bytes, wants_room: bool) -> None: ...
    def encode_received(
        self, records: bytes, reception: tuple[Any, ...]
    ) -> list[tuple[bytes, list[tuple[int, int, int, int, str, str, int, bool]]]] | None: ...
    def end(self, call: int, code: int, text: str) -> None: ...
    def read(self, call: int) -> None: ...
    def abort(self, connection: int) -> None: ...
    def set_certificate(self, certificate: bytes, key: bytes) -> None: ...
    def send(self) -> None: ...
    def close(self) -> None: ...

class PlainSends:
    """`kernels.grpc_port.PlainSends`. Raises ValueError for a position without a frame, and invalid responses."""

    connection: int
    client_id: str
    size: int
    headers: dict[str, str]
    topics: list[str]
    def __len__(self) -> int: ...
    def frames(self, queues: Sequence[tuple[int, int] | None]) -> bytes: ...
    # next position, call
    def take_at(self, position: int, end: int) -> tuple[int, tuple[Any, ...]]: ...
    def take_between(self, position: int, end: int) -> list[int]: ...
    def take_rest(self) -> list[tuple[Any, ...]]: ...
    # call, code, remark; text, keys and number of trace records
    def answer(
        self, port: GrpcPort, responses: bytes, traces: tuple[str, str, int, int] | None
    ) -> tuple[list[tuple[int, int, str]], list[tuple[bytes, str, int]]]: ...

class PlainAcks:
    """`kernels.grpc_port.PlainAcks`."""

    connection: int
    client_id: str
    headers: dict[str, str]
    deliveries: list[tuple[str, str, str, int, int, bool, list[int]]]
    def __len__(self) -> int: ...
    def answer(self, port: GrpcPort) -> None: ...
    def take_rest(self) -> list[tuple[Any, ...]]: ...

class SignatureChecker:
    """`kernels.signed_runs.SignatureChecker`. Raises TypeError for invalid arguments, whatever `data` contains."""

    def __init__(self, secrets: Sequence[tuple[str, str]], fields: Sequence[tuple[int, Sequence[str]]]) -> None: ...
    # frames, positions, starts
    def check(
        self,
        data: bytes,
        position: int,
        header_max: int,
        frames_max: int,
        permit: Callable[[str, int, tuple[str | None, ...]], bool],
    ) -> tuple[bytes, list[int], list[int]]: ...

class FileMap:
    """`kernels.pulls.pull_selection.FileMap`: a file of the machine's disk. Linux only.

    Raises OSError if the file cannot be mapped, ValueError for bytes that are not loaded and for a closed map.
    """

    def __init__(self, handle: int, size: int, resident_max: int) -> None: ...
    def load(self, start: int, stop: int) -> bool: ...
    def __getitem__(self, part: slice, /) -> bytes: ...
    def close(self) -> None: ...

_Limits = tuple[int, int, int, int, int, int]  # `kernels.pulls.pull_selection.PullLimits`
_SelectedMessages = tuple[bytes, tuple[int, ...], int, int, bool]  # body, sizes, scanned, last, is_removed

def select_messages(
    entries: bytes, log_map: Any, base: int, size: int, codes: Set[int] | None, limits: _Limits
) -> _SelectedMessages | None:
    """`kernels.pulls.pull_selection.select_messages`. Reads a `FileMap` of this module without Python."""

class PullHeaders:
    """Headers of pulls that are known to `kernels.pulls.pull_reader`."""

    def __init__(self) -> None: ...
    def learn(self, key: bytes, value: object) -> None:
        """Remember a header, with a zero byte in place of each number; `value` is returned for all pulls with this header."""

    def clear(self) -> None: ...
    def find(self, data: bytes, position: int, header_max: int) -> tuple[Any, int, int, int, int, int, int] | None:
        """Return value, queue id, queue offset, commit offset, opaque, form and end of the pull at `position`; None if unknown."""

# `kernels.pulls.pull_answers.PullQuery`: entries, count, codes, number of the first entry, bounds of the queue, brokers, opaque
_PullQuery = tuple[bytes, int, Set[int] | None, int, int, int, tuple[int, int], int]
_PullSource = tuple[int, int, int, int, int, int, int, int, int]  # `kernels.pulls.pull_answers.PullSource`

def answer_pulls(
    queries: Sequence[_PullQuery], log_map: Any, source: _PullSource, texts: list[bytes]
) -> tuple[bytes, list[tuple[int, int, int, int]]]:
    """`kernels.pulls.pull_answers.answer_pulls`. `texts` surround the numbers in the header of a response."""

class IndexSlots:
    """`kernels.index_slots.IndexSlots`. Raises ValueError, TypeError, or MemoryError for too many slots."""

    def __init__(self, count: int) -> None: ...
    def newest(self, slot: int) -> int: ...
    # entries, slots used
    def link(self, keys: bytes, seconds: Sequence[tuple[int, int]], number: int) -> tuple[bytes, int]: ...
    # length, slots used, last offset
    def continue_chains(self, entries: bytes, number: int, bounds: tuple[int, int, bool]) -> tuple[int, int, int]: ...
    def load(self, position: int, data: bytes) -> None: ...
    def dump(self, position: int, size: int) -> bytes: ...

def find_chain(data: bytes, offset: int, limit: int) -> tuple[bytes, int, bool]:
    """Find the adjacent records at the start of `data`, which is stored at `offset` of a log; none ends after `limit`.

    Returns:
        Their starts (i64 each, in native byte order), their size in bytes, and whether one may replace a corrupt range.
    """

_QueueRecords = tuple[bytes, int, int, bool, bytes]  # topic, queue id, queue offset, is consecutive, entries
# size, records, store times, queues, keys, key times, deliveries, commits, rollbacks
_ScannedRecords = tuple[
    int,
    int,
    tuple[int, int, int, int],
    list[_QueueRecords],
    bytes,
    list[tuple[int, int]],
    list[tuple[int, int]],
    list[int],
    list[int],
]

def scan_records(
    data: bytes, position: int, place: tuple[int, int, int], check_crc: bool, hash_keys: bool
) -> _ScannedRecords | None:
    """`kernels.record_runs.scan_records`. Raises ValueError for a position outside `data`."""

def find_all(data: bytes) -> bytes | None:
    """Return the starts of the records that `data` consists of; None if it contains anything else."""

# Buffers of a column: validity (None without nulls), offsets if the values differ in size, values.
# Those of a map: offsets of its rows, offsets and bytes of the names, offsets and bytes of the values.
_Column = tuple[int, list[bytes | None]]  # number of nulls, buffers

class ColumnDecoder:
    """Decodes records to Arrow columns. Raises ValueError for a column that records do not have."""

    def __init__(self, columns: list[str]) -> None: ...
    def decode(
        self, data: bytes, starts: bytes, checks_bodies: bool
    ) -> tuple[list[_Column], bool, list[tuple[int, bool]]] | None:
        """Decode the records at `starts`.

        Returns:
            The columns, whether a body is compressed (it is returned as stored), and the rows whose body or properties are
            damaged, with whether the properties end in zeros; None if a record is unusual: IPv6 hosts, inconsistent lengths,
            text that is not UTF-8.
        """
