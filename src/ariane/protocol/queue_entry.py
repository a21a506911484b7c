"""An entry of a consume queue: where the record of one message is stored, and what held pulls and filters need of it.

    commit log offset i64 | record size i32 | tags code i64          20 bytes, in the file of the queue
    hash u32 | commit log offset i64                                 a key of a record, on its way to the index

[ConsumeQueue, IndexFile]
"""

from __future__ import annotations

from struct import Struct

ENTRY = Struct(">qiq")
ENTRY_SIZE = ENTRY.size
INDEX_KEY = Struct(">Iq")
