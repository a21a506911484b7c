"""Native core of Ariane. `ariane.kernels.implementation` decides whether it is used."""

from collections.abc import Callable, Set

INTERFACE_VERSION: int
"""Of the classes below; `ariane.kernels.implementation` expects one."""

VERSION: str
"""Of the distribution."""

_QueueEntries = tuple[str, int, bytes, int, int]  # topic, queue id, entries, sends, bytes of the records
# position, sends, records, queues, keys, responses
_SendRun = tuple[int, int, bytes, list[_QueueEntries], bytes, bytes]

class SendEncoder:
    """`ariane.kernels.send_turn.SendEncoder`. Raises ValueError or TypeError for invalid arguments, whatever `data` contains."""

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
