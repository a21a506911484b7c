"""Keys of a record and their hashes in the index.

    properties  ->  UNIQ_KEY, then each word of KEYS  ->  |hash of "<topic>#<key>"|

A broker hashes one unique id per message, so this must cost nearly nothing. The ids of one client differ only in their last
characters while its clock shows the same millisecond, so the hash of the prefix is cached.
[IndexService.buildIndex, IndexFile.indexKeyHashMethod]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ariane.model.hashes import string_hash
from ariane.model.message import KEYS, TRANSACTION_MASK, TRANSACTION_ROLLBACK, UNIQ_KEY
from ariane.protocol import properties as properties_text
from ariane.protocol.queue_entry import INDEX_KEY

Keyed = tuple[str, str, int, int]  # topic, properties, commit log offset, store time of a record that may have keys

KEY_SEPARATOR = " "
PREFIXES_MAX = 4096  # cached prefixes per topic, and topics with cached prefixes
_UNIQUE = f"{UNIQ_KEY}{properties_text.NAME_END}"
_UNIQUE_SIZE = len(_UNIQUE)
_KEYS = f"{KEYS}{properties_text.NAME_END}"
_KEYS_SIZE = len(_KEYS)
_PAIR_END = properties_text.PAIR_END
_TAIL = 4  # characters of an id that are looked up in two pairs
_31_2, _31_4 = 31**2, 31**4
_LOW = {a + b: ord(a) * 31 + ord(b) for a in "0123456789ABCDEF" for b in "0123456789ABCDEF"}
_HIGH = {pair: value * _31_2 for pair, value in _LOW.items()}


def is_indexed(sys_flag: int) -> bool:
    """Return whether a record with these flags can be found by its keys: all except rolled-back ones."""
    return sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


def parse_keys(properties: str) -> list[str]:
    """Return the keys in a stored properties text without duplicates, the unique id first."""
    property_values = properties_text.decode(properties)
    unique, words = property_values.get(UNIQ_KEY, ""), property_values.get(KEYS, "").split(KEY_SEPARATOR)
    return [key for key in dict.fromkeys((unique, *words)) if key]


def key_hash(topic: str, key: str) -> int:
    """Return the absolute value of a key's hash; 0 for the one number without a positive counterpart."""
    value = abs(string_hash(f"{topic}#{key}"))
    return 0 if value > 0x7FFF_FFFF else value


class KeyHashes:
    """Hashes the keys of many records in one call."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, int]] = {}

    def hash_keys(self, records: Sequence[Keyed]) -> bytes:
        """Return `key_hash` of all `parse_keys` of all records with the offset of the record (`INDEX_KEY`), in their order."""
        topics = self._topics
        if len(topics) > PREFIXES_MAX:
            topics.clear()
        hashed: list[bytes] = []
        pack = INDEX_KEY.pack
        for topic, properties, offset, _ in records:
            position = properties.rfind(_UNIQUE)
            if position < 0:
                if _KEYS in properties:
                    hashed += [pack(key_hash(topic, key), offset) for key in parse_keys(properties)]
                continue
            end = properties.find(_PAIR_END, position)
            key = properties[position + _UNIQUE_SIZE : end] if end > 0 else properties[position + _UNIQUE_SIZE :]
            heads = topics.get(topic)
            if heads is None:
                heads = topics[topic] = {}
            head = heads.get(key[:-_TAIL])
            if head is None:
                head = self._prefix_hash(heads, topic, key)
            try:
                value = head + _HIGH[key[-4:-2]] + _LOW[key[-2:]] & 0xFFFFFFFF
            except KeyError:  # not a unique id of a known client
                hashed += [pack(key_hash(topic, key), offset) for key in parse_keys(properties)]
                continue
            if position and properties[position - 1] != _PAIR_END:  # the end of another property name
                hashed += [pack(key_hash(topic, key), offset) for key in parse_keys(properties)]
                continue
            if value >= 0x8000_0000:
                value = 0x1_0000_0000 - value if value > 0x8000_0000 else 0
            hashed.append(pack(value, offset))
            if _KEYS in properties:
                hashed += [pack(key_hash(topic, word), offset) for word in _words(properties) if word != key]
        return b"".join(hashed)

    @staticmethod
    def _prefix_hash(heads: dict[str, int], topic: str, key: str) -> int:
        """Return the hash of topic and `key` without its tail, scaled to its part of the whole hash."""
        if len(heads) >= PREFIXES_MAX:
            heads.clear()
        start = key[:-_TAIL]
        value = heads[start] = (string_hash(f"{topic}#{start}") & 0xFFFFFFFF) * _31_4
        return value


def _words(properties: str) -> Iterable[str]:
    """Return the words of KEYS without duplicates."""
    position = properties.rfind(_KEYS)
    end = properties.find(_PAIR_END, position)
    text = properties[position + _KEYS_SIZE :] if end < 0 else properties[position + _KEYS_SIZE : end]
    if not text or (position and properties[position - 1] != _PAIR_END):  # empty, or the end of another property name
        text = properties_text.decode(properties).get(KEYS, "")
    return filter(None, dict.fromkeys(text.split(KEY_SEPARATOR)))
