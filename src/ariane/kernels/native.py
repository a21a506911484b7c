"""The native implementation: `ariane_native`, behind the same interfaces as Python's.

If it fails, which only a bug of it can cause, the Python implementation continues in its place.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from ariane.kernels.grpc_port import OpenGrpcPort
from ariane.kernels.index_slots import IndexSlots, PythonIndexSlots
from ariane.kernels.native_records import NativeRecords
from ariane.kernels.native_slots import NativeIndexSlots
from ariane.kernels.pulls.pull_answers import AnsweredPull, PullQuery, PullSource, answer_pulls
from ariane.kernels.pulls.pull_reader import NativePullReader, PullReader, PythonPullReader
from ariane.kernels.pulls.pull_selection import FileMap, PullLimits, SelectedMessages, select_messages
from ariane.kernels.pulls.pull_turn import FOUND_TEXTS
from ariane.kernels.record_runs import LogPlace, QueueRecords, RunTimes, ScannedRecords, scan_records
from ariane.kernels.sends.send_encoder import PythonSendEncoder
from ariane.kernels.sends.send_turn import LogEnd, QueueRun, SendEncoder, SendRun, SendSettings
from ariane.kernels.signed_runs import NativeSignatureChecker, PythonSignatureChecker, SignatureChecker

log = logging.getLogger("ariane.kernels")

MODULE = "ariane_native"
INTERFACE_VERSION = 6  # of the classes in `native/core/ariane_native.pyi` that this module uses


class NativeUnavailable(Exception):
    """`ariane_native` is not installed."""


class NativeUnfit(NativeUnavailable):
    """`ariane_native` is installed but cannot be used."""


def load_native() -> Any:
    """Return the module `ariane_native`.

    Raises:
        NativeUnavailable: it is not installed, does not load, or has another interface.
    """
    try:
        module = importlib.import_module(MODULE)
    except ModuleNotFoundError:
        raise NativeUnavailable(f"the package {MODULE} is not installed") from None
    except ImportError as error:
        raise NativeUnfit(f"the package {MODULE} cannot be loaded ({error})") from None
    version = getattr(module, "INTERFACE_VERSION", None)
    if version != INTERFACE_VERSION:
        installed = f"{MODULE} {getattr(module, 'VERSION', 'of an unknown version')} has interface {version}"
        raise NativeUnfit(f"{installed}, expected {INTERFACE_VERSION}")
    return module


class NativeFailure:
    """The first failure of the native code, since when Python is used. All parts of one `NativeCore` share it."""

    def __init__(self) -> None:
        self.text = ""  # empty while there is none

    def report(self, error: RuntimeError) -> None:
        """Use Python from now on."""
        if not self.text:
            self.text = str(error)
            log.error("The native core failed, continuing with the Python implementation: %s", error)


class NativeCore:
    """The native implementation. [Implementation]"""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._failure = NativeFailure()
        self._records = NativeRecords(module, self._failure.report)

    @property
    def description(self) -> str:
        if self._failure.text:
            return f"python (native failed: {self._failure.text})"
        return f"native {self._module.VERSION}"

    @property
    def native_records(self) -> NativeRecords | None:
        return None if self._failure.text else self._records

    @property
    def open_grpc_port(self) -> OpenGrpcPort | None:
        # Windows has none, nor do builds of earlier sources.
        return cast(OpenGrpcPort | None, getattr(self._module, "GrpcPort", None))

    def send_encoder(self, settings: SendSettings) -> SendEncoder:
        fallback = PythonSendEncoder(settings)
        if self._failure.text:
            return fallback
        return NativeSendEncoder(self._module, settings, fallback, self._failure)

    def signature_checker(self, secrets: Mapping[str, str], fields: Mapping[int, tuple[str, ...]]) -> SignatureChecker:
        fallback = PythonSignatureChecker(secrets, fields)
        if self._failure.text:
            return fallback
        checker = self._module.SignatureChecker(list(secrets.items()), list(fields.items()))
        return NativeSignatureChecker(checker, fallback, lambda: self._failure.text, self._failure.report)

    def map_file(self, handle: int, size: int, resident_max: int) -> FileMap | None:
        """Map a file in native code, which copies records out of its own maps without Python. [Implementation.map_file]"""
        if self._failure.text:
            return None
        file_map: FileMap = self._module.FileMap(handle, size, resident_max)
        return file_map

    def select_messages(
        self, entries: bytes, log_map: FileMap, base: int, size: int, codes: frozenset[int] | None, limits: PullLimits
    ) -> SelectedMessages | None:
        """Return the messages of one pull, from a map of either implementation. [pull_selection.select_messages]"""
        if self._failure.text:
            return select_messages(entries, log_map, base, size, codes, limits)
        try:
            selected = self._module.select_messages(entries, log_map, base, size, codes, limits)
        except RuntimeError as error:
            # An error of `log_map` is raised once more here. Otherwise it was a panic of the native code.
            messages = select_messages(entries, log_map, base, size, codes, limits)
            self._failure.report(error)
            return messages
        return None if selected is None else SelectedMessages._make(selected)

    def pull_reader(self) -> PullReader:
        if self._failure.text:
            return PythonPullReader()
        return NativePullReader(self._module, lambda: self._failure.text, self._failure.report)

    def answer_pulls(
        self, queries: list[PullQuery], log_map: FileMap, source: PullSource
    ) -> tuple[bytes, list[AnsweredPull]]:
        """Return the responses to the pulls of a turn. [pull_answers.answer_pulls]"""
        if self._failure.text:
            return answer_pulls(queries, log_map, source)
        try:
            answered: tuple[bytes, list[AnsweredPull]] = self._module.answer_pulls(
                queries, log_map, source, FOUND_TEXTS
            )
        except RuntimeError as error:
            # As in `select_messages`: an error of `log_map` is raised once more here.
            answered = answer_pulls(queries, log_map, source)
            self._failure.report(error)
        return answered

    def scan_records(
        self, data: bytes, position: int, place: LogPlace, *, check_crc: bool, hash_keys: bool
    ) -> ScannedRecords | None:
        """Return the records at a position of the log. [record_runs.scan_records]"""
        if self._failure.text:
            return scan_records(data, position, place, check_crc=check_crc, hash_keys=hash_keys)
        try:
            run = self._module.scan_records(data, position, place, check_crc, hash_keys)
        except RuntimeError as error:
            self._failure.report(error)
            return scan_records(data, position, place, check_crc=check_crc, hash_keys=hash_keys)
        if run is None:
            return None
        size, records, times, queues, *derived = run
        return ScannedRecords(size, records, RunTimes._make(times), list(map(QueueRecords._make, queues)), *derived)

    def index_slots(self, count: int) -> IndexSlots:
        if self._failure.text:
            return PythonIndexSlots(count)
        return NativeIndexSlots(self._module, count, self._failure.report)


class NativeSendEncoder:
    """Encodes runs of plain sends in native code. [SendEncoder]"""

    def __init__(
        self,
        module: Any,
        settings: SendSettings,
        fallback: SendEncoder,
        failure: NativeFailure,
    ) -> None:
        self._encode = module.SendEncoder(
            store_host=settings.store_host,
            cluster=settings.cluster,
            region=settings.region,
            trace_on=settings.trace_on,
            header_max=settings.header_max,
            body_max=settings.body_max,
            is_indexed=settings.is_indexed,
            exceptional=settings.exceptional,
        ).encode
        self.frames_max: int = module.SendEncoder.frames_max
        self._fallback = fallback  # encodes if the native code fails
        self._failure = failure  # of this encoder, or of another part of the core

    def encode(
        self, data: bytes, position: int, born_host: bytes, log_end: LogEnd, next_offset: Callable[[str, int], int]
    ) -> SendRun:
        """Encode the plain sends in `data` from `position` on. [SendEncoder.encode]"""
        if self._failure.text:
            self.frames_max = self._fallback.frames_max
            return self._fallback.encode(data, position, born_host, log_end, next_offset)
        try:
            end, sends, records, queues, keys, responses = self._encode(data, position, born_host, log_end, next_offset)
        except RuntimeError as error:
            # An error of `next_offset` is raised once more here. Otherwise it was a panic of the native code.
            run = self._fallback.encode(data, position, born_host, log_end, next_offset)
            self.frames_max = self._fallback.frames_max
            self._failure.report(error)
            return run
        # The fields of a `QueueRun` as a plain tuple: a turn may have one for each of its sends.
        return SendRun(end, sends, records, cast(list[QueueRun], queues), keys, responses)
