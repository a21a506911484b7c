"""The implementation of the interfaces of this package that a process uses.

ARIANE_IMPL=auto     native if `ariane_native` is installed and fits, otherwise Python (the default)
ARIANE_IMPL=native   native; without it programs do not start
ARIANE_IMPL=python   Python
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cache
from typing import Protocol

from ariane.errors import ConfigError
from ariane.kernels import record_runs
from ariane.kernels.grpc_port import OpenGrpcPort
from ariane.kernels.index_slots import IndexSlots, PythonIndexSlots
from ariane.kernels.native import NativeCore, NativeUnavailable, NativeUnfit, load_native
from ariane.kernels.native_records import NativeRecords
from ariane.kernels.pulls.pull_answers import AnsweredPull, PullQuery, PullSource, answer_pulls
from ariane.kernels.pulls.pull_reader import PullReader, PythonPullReader
from ariane.kernels.pulls.pull_selection import FileMap, PullLimits, SelectedMessages, select_messages
from ariane.kernels.record_runs import LogPlace, ScannedRecords
from ariane.kernels.sends.send_encoder import PythonSendEncoder
from ariane.kernels.sends.send_turn import SendEncoder, SendSettings
from ariane.kernels.signed_runs import PythonSignatureChecker, SignatureChecker

log = logging.getLogger("ariane.kernels")

VARIABLE = "ARIANE_IMPL"
CHOICES = ("auto", "native", "python")
INSTALL = "pip install ariane[native]"


class Implementation(Protocol):
    """Makes the objects of one implementation."""

    @property
    def description(self) -> str:
        """Name, and version if it is native: for logs and reports."""
        ...

    @property
    def native_records(self) -> NativeRecords | None:
        """Decodes records to columns; None: `ariane.spark.records` does, which needs packages of the extra spark."""
        ...

    @property
    def open_grpc_port(self) -> OpenGrpcPort | None:
        """Opens gRPC ports; None: grpcio does."""
        ...

    def send_encoder(self, settings: SendSettings) -> SendEncoder:
        """Return an encoder of plain sends."""
        ...

    def signature_checker(self, secrets: Mapping[str, str], fields: Mapping[int, tuple[str, ...]]) -> SignatureChecker:
        """Return a checker of signed requests. [signed_runs.PythonSignatureChecker]"""
        ...

    def map_file(self, handle: int, size: int, resident_max: int) -> FileMap | None:
        """Map a file that has at least `size` bytes; None if this implementation has no maps of its own.

        Args:
            handle: The open file; it may be closed afterwards.
            size: Bytes to map.
            resident_max: Bytes that are loaded before all pages are released.

        Raises:
            OSError: the file cannot be mapped.
        """
        ...

    def select_messages(
        self, entries: bytes, log_map: FileMap, base: int, size: int, codes: frozenset[int] | None, limits: PullLimits
    ) -> SelectedMessages | None:
        """Return the messages of one pull. [pull_selection.select_messages]"""
        ...

    def pull_reader(self) -> PullReader:
        """Return a reader of plain pulls."""
        ...

    def answer_pulls(
        self, queries: list[PullQuery], log_map: FileMap, source: PullSource
    ) -> tuple[bytes, list[AnsweredPull]]:
        """Return the responses to the pulls of a turn. [pull_answers.answer_pulls]"""
        ...

    def scan_records(
        self, data: bytes, position: int, place: LogPlace, *, check_crc: bool, hash_keys: bool
    ) -> ScannedRecords | None:
        """Return the records at a position of the log. [record_runs.scan_records]"""
        ...

    def index_slots(self, count: int) -> IndexSlots:
        """Return `count` empty slots of an index file."""
        ...


class PythonCore:
    """The Python implementation. [Implementation]"""

    description = "python"
    native_records = None
    open_grpc_port = None

    def send_encoder(self, settings: SendSettings) -> SendEncoder:
        return PythonSendEncoder(settings)

    def signature_checker(self, secrets: Mapping[str, str], fields: Mapping[int, tuple[str, ...]]) -> SignatureChecker:
        return PythonSignatureChecker(secrets, fields)

    def map_file(self, handle: int, size: int, resident_max: int) -> None:
        return None

    def select_messages(
        self, entries: bytes, log_map: FileMap, base: int, size: int, codes: frozenset[int] | None, limits: PullLimits
    ) -> SelectedMessages | None:
        return select_messages(entries, log_map, base, size, codes, limits)

    def pull_reader(self) -> PullReader:
        return PythonPullReader()

    def answer_pulls(
        self, queries: list[PullQuery], log_map: FileMap, source: PullSource
    ) -> tuple[bytes, list[AnsweredPull]]:
        return answer_pulls(queries, log_map, source)

    def scan_records(
        self, data: bytes, position: int, place: LogPlace, *, check_crc: bool, hash_keys: bool
    ) -> ScannedRecords | None:
        return record_runs.scan_records(data, position, place, check_crc=check_crc, hash_keys=hash_keys)

    def index_slots(self, count: int) -> IndexSlots:
        return PythonIndexSlots(count)


@cache
def selected() -> Implementation:
    """Return the implementation that ARIANE_IMPL selects.

    Raises:
        ConfigError: the value is invalid, or the native implementation is demanded and cannot be loaded.
    """
    return select(os.environ.get(VARIABLE) or CHOICES[0])


def select(choice: str) -> Implementation:
    """Return the implementation for a value of ARIANE_IMPL. [selected]"""
    if choice not in CHOICES:
        raise ConfigError(VARIABLE, choice, f"expected one of {', '.join(CHOICES)}")
    if choice == "python":
        return PythonCore()
    try:
        return NativeCore(load_native())
    except NativeUnavailable as error:
        if choice == "native":
            raise ConfigError(VARIABLE, choice, f"{error}; install it with `{INSTALL}`, or choose auto") from None
        if isinstance(error, NativeUnfit):
            log.warning("Using the Python implementation: %s; update it with `%s`", error, INSTALL)
    return PythonCore()


def send_encoder(settings: SendSettings) -> SendEncoder:
    """Return an encoder of plain sends of the selected implementation."""
    return selected().send_encoder(settings)


def scan_records(
    data: bytes, position: int, place: LogPlace, *, check_crc: bool, hash_keys: bool
) -> ScannedRecords | None:
    """Return the records at a position of the log, by the selected implementation. [record_runs.scan_records]"""
    return selected().scan_records(data, position, place, check_crc=check_crc, hash_keys=hash_keys)


def index_slots(count: int) -> IndexSlots:
    """Return empty slots of an index file of the selected implementation."""
    return selected().index_slots(count)


def native_records() -> NativeRecords | None:
    """Return the decoder of records of the selected implementation, None if that is Python's."""
    return selected().native_records
