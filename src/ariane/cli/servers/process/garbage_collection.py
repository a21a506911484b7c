"""Bounds the pauses of Python's garbage collector in a server, whose tables live as long as the process.

A full collection visits every object: with 30,000 topics 0.15 s, in which no request is served, and more with more topics. Objects
that survived one are therefore frozen: the next full collection visits only the objects that were created since.

    full collection ─ survivors ─→ frozen ─ every THAW_EVERY collections ─→ visited once more, for cycles that are garbage by now

Without cycles an object is freed by its reference count, frozen or not. While clients hold many requests, whose objects are freed
at their end, such a collection takes more than a second, and is postponed.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

FULL = 2  # generation of a full collection
THAW_EVERY = 64  # full collections; between two of them some thousand objects survive, so about half a million in all
GROWTH_MAX = 100_000  # objects frozen since the start that are visited without delay
POSTPONED_MAX = 15  # times in a row that they are not visited because there are more


class FrozenSurvivors:
    """Freezes the survivors of each full collection. Call `start` once the server is ready."""

    def __init__(self, thaw_every: int = THAW_EVERY, growth_max: int = GROWTH_MAX) -> None:
        self._thaw_every = thaw_every
        self._growth_max = growth_max
        self._frozen_at_start = 0
        self._collections = 0  # full ones so far
        self._postponed = 0  # times in a row

    def start(self) -> None:
        """Freeze all objects, and the survivors of collections from now on."""
        gc.collect()
        gc.freeze()
        self._frozen_at_start = gc.get_freeze_count()
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Leave later collections as they are, and visit all objects again."""
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()

    def _on_collection(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != FULL:
            return
        if phase == "stop":
            gc.freeze()
            return
        self._collections += 1
        if self._collections % self._thaw_every:
            return
        has_grown = gc.get_freeze_count() > self._frozen_at_start + self._growth_max
        if has_grown and self._postponed < POSTPONED_MAX:
            self._postponed += 1
            return
        self._postponed = 0
        gc.unfreeze()
