"""An entry of a consume queue: where the record of one message is stored, and what held pulls and filters need of it.

    commit log offset i64 | record size i32 | tags code i64          20 bytes, in the file of the queue
    hash u32 | commit log offset i64                                 a key of a record, on its way to the index

[ConsumeQueue, IndexFile]
"""

from __future__ import annotations

from struct import Struct

ENTRY = Struct(">qiq")
ENTRY_SIZE = ENTRY.size
OFFSET_AND_SIZE = Struct(">qi")  # the beginning of an entry
# An entry without a record has this size; offset and code are 0.
BLANK_SIZE = 2147483647
BLANK = ENTRY.pack(0, BLANK_SIZE, 0)
# The tags code of a lost record's entry: not the hash of a tag or an extended address, and neither is its low half.
LOST_CODE = int.from_bytes(b"LOST", "big") << 32
INDEX_KEY = Struct(">Iq")
