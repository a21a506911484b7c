"""The work of a turn, without I/O: bytes and tables in; records, entries, keys and responses out. In Python, or native.

    sends            received frames → records, queue entries, index keys, responses
    pulls            received frames, queue entries, a map of the log → responses
    signed_runs      signed frames   → plain ones, whose signatures are verified
    key_hashes       properties      → hashes of keys
    index_slots      hashes of keys  → entries of index files
    native           the same in `ariane_native`
    native_records   stored records  → buffers of Arrow columns (its twin is `ariane.spark.records`)
    record_runs      a piece of the log → queue entries, index keys, store times
    implementation   ARIANE_IMPL     → one of both

A turn is what one read of a socket brought. Each module has one interface and two implementations that return the same bytes: the
Python one here, and a native one (`native/` in the repository, distribution `ariane-native`), which is optional.
"""
