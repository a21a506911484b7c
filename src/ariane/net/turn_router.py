"""Chooses the handler of a run of plain requests by the code of its first frame.

received data ─ code of the next frame ─┬→ TurnHandler of this code → ServedTurn
                                        └→ None: the frame is decoded for its handler
"""

from __future__ import annotations

from collections.abc import Mapping

from ariane.net.replies import Peer, ServedTurn, TurnHandler
from ariane.protocol.frame import BINARY_FORM, PREFIX_SIZE

JSON_START_MAX = 20  # bytes of a JSON header up to the end of its code


class TurnRouter:
    """Passes each run to the handler of its code. [TurnHandler]

    Args:
        turns: Request code -> handler of runs that begin with it.
    """

    def __init__(self, turns: Mapping[int, TurnHandler]) -> None:
        # What a header begins with: all known clients write `code` first.
        self._by_json_start = {b'{"code":%d' % code: turn for code, turn in turns.items()}
        self._by_binary_start = {code.to_bytes(2, "big"): turn for code, turn in turns.items()}

    def serve(self, data: bytes, position: int, peer: Peer, waited_s: float) -> ServedTurn | None:
        """Serve the plain requests in `data` from `position` on. [TurnHandler.serve]"""
        start = position + PREFIX_SIZE
        if len(data) > start and data[position + 4] == BINARY_FORM:
            turn = self._by_binary_start.get(data[start : start + 2])
        else:
            code_end = data.find(b",", start, start + JSON_START_MAX)
            turn = self._by_json_start.get(data[start:code_end]) if code_end > 0 else None
        return None if turn is None else turn.serve(data, position, peer, waited_s)
