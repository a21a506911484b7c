"""Keys of a record and their hashes in the index.

    properties  ->  UNIQ_KEY, then each word of KEYS  ->  |hash of "<topic>#<key>"|

A broker hashes one unique id per message, so this must cost nearly nothing. The ids of one client differ only in their last
characters while its clock shows the same millisecond, and so do numbered keys. So the hashes of topics and of the starts of keys
are cached: hash("<topic>#" + start + end) = hash("<topic>#") * 31^len(start + end) + hash(start) * 31^len(end) + hash(end).
[IndexService.buildIndex, IndexFile.indexKeyHashMethod]
"""

from __future__ import annotations

import string
from collections.abc import Iterable

from ariane.model.hashes import string_hash
from ariane.model.message import KEYS, TRANSACTION_MASK, TRANSACTION_ROLLBACK, UNIQ_KEY
from ariane.protocol.records import properties as properties_text
from ariane.protocol.records.properties import NAME_END, PAIR_END
from ariane.protocol.records.queue_entry import INDEX_KEY

KeyedRecord = tuple[
    str, str, int, int
]  # topic, properties, commit log offset, store time of a record that may have keys
KeyValues = tuple[str, str, str, int]  # topic, UNIQ_KEY, KEYS (or empty texts), commit log offset of a record

KEY_SEPARATOR = " "
CACHED_MAX = 4096  # starts of keys, and topics
_UNIQUE = f"{UNIQ_KEY}{NAME_END}"
_KEYS = f"{KEYS}{NAME_END}"
_TAIL = 4  # characters of a key that are looked up in two pairs
_DIGITS = string.digits + string.ascii_letters
_LOW = {a + b: ord(a) * 31 + ord(b) for a in _DIGITS for b in _DIGITS}
_HIGH = {pair: value * 31**2 for pair, value in _LOW.items()}


def is_indexed(sys_flag: int) -> bool:
    """Return whether a record with these flags can be found by its keys: all except rolled-back ones."""
    return sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


def parse_keys(properties: str) -> list[str]:
    """Return the keys in a stored properties text without duplicates, the unique id first."""
    property_values = properties_text.decode(properties)
    return split_keys(property_values.get(UNIQ_KEY, ""), property_values.get(KEYS, ""))


def split_keys(unique_key: str, words: str) -> list[str]:
    """Return the keys in the values of UNIQ_KEY and KEYS without duplicates."""
    return [key for key in dict.fromkeys((unique_key, *words.split(KEY_SEPARATOR))) if key]


def key_hash(topic: str, key: str) -> int:
    """Return the absolute value of a key's hash; 0 for the one number without a positive counterpart."""
    value = abs(string_hash(f"{topic}#{key}"))
    return 0 if value > 0x7FFF_FFFF else value


class KeyHashes:
    """Hashes the keys of many records in one call."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}  # hash of "<topic>#"
        self._starts: dict[str, tuple[int, int]] = {}  # of a start: its part of the key's hash, and 31^len(key)

    def hash_keys(self, records: Iterable[KeyedRecord]) -> bytes:
        """Return `key_hash` of all `parse_keys` of all records with the offset of the record (`INDEX_KEY`), in their order."""
        return self.hash_values(
            [
                (topic, _value(properties, _UNIQUE, UNIQ_KEY), _value(properties, _KEYS, KEYS), offset)
                for topic, properties, offset, _ in records
            ]
        )

    def hash_values(self, records: Iterable[KeyValues]) -> bytes:
        """Return the same for records whose properties were decoded."""
        pack, topics, starts = INDEX_KEY.pack, self._topics, self._starts
        hashed: list[bytes] = []
        for topic, unique_key, words, offset in records:
            is_single = KEY_SEPARATOR not in words and words != unique_key
            for key in (unique_key, words) if is_single else split_keys(unique_key, words):
                try:
                    start_hash, power = starts[key[:-_TAIL]]
                    value = topics[topic] * power + start_hash + _HIGH[key[-4:-2]] + _LOW[key[-2:]] & 0xFFFF_FFFF
                except KeyError:
                    if key:
                        hashed.append(pack(self._hash_new(topic, key), offset))
                    continue
                if value >= 0x8000_0000:
                    value = 0x1_0000_0000 - value if value > 0x8000_0000 else 0
                hashed.append(pack(value, offset))
        return b"".join(hashed)

    def _hash_new(self, topic: str, key: str) -> int:
        """Return `key_hash`; cache what the next keys may have in common with this one."""
        if key[-2:] in _LOW and key[-4:-2] in _HIGH:
            self._add_topic(topic)
            self._add_start(key[:-_TAIL])
        return key_hash(topic, key)

    def _add_topic(self, topic: str) -> None:
        if len(self._topics) >= CACHED_MAX:
            self._topics.clear()
        self._topics[topic] = string_hash(f"{topic}#")

    def _add_start(self, start: str) -> None:
        if len(self._starts) >= CACHED_MAX:
            self._starts.clear()
        units = len(start) if start.isascii() else len(start.encode("utf-16-le", "surrogatepass")) // 2
        self._starts[start] = string_hash(start) * 31**_TAIL, pow(31, units + _TAIL, 1 << 32)


def _value(properties: str, mark: str, name: str) -> str:
    """Return the value of a property that may occur, without decoding the others; `mark` is the name with its end."""
    position = properties.rfind(mark)
    if position < 0:
        return ""
    end = properties.find(PAIR_END, position)
    value = properties[position + len(mark) : end] if end > 0 else properties[position + len(mark) :]
    if not value or (position and properties[position - 1] != PAIR_END):  # empty, or the end of another name
        return properties_text.decode(properties).get(name, "")
    return value
