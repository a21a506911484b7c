"""Backups of a store directory: consistent while its broker runs, incremental, checked.

store directory ── create ──► target: chunks/HH/SHA256   parts of files, each stored once
(only read)                           backups/ID.json    what a backup consists of
                                │
new directory ◄── restore ──────┘     derived files (queues, index, timers) are rebuilt by the broker's first start

backup_target     directories and fsspec URLs
manifest          the list of files of a backup
store_snapshot    a consistent view of a store that is being written to
create, restore   the two directions; retention removes old backups
"""
