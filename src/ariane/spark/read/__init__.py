"""From queues to rows: what is there (`pull`, `ends`), what of it a task reads (`offsets`), and the rows (`tasks`).

options ─→ batch, micro_batches ─→ partitions ─→ tasks ─→ records.decode          progress: how far a query is
"""
