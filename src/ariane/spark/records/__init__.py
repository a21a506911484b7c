"""Decoding of stored records to Arrow columns, for pulled messages and for store files. No I/O."""
