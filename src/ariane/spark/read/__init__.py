"""From queues to rows: queue bounds, the offset ranges of a batch or micro-batch, and the tasks that pull them.

options ─→ batch, micro_batches ─→ partitions ─→ read_task ─→ records.arrow_decoder          progress: lag of a query
                └─ micro_batch_planner, planning, queue_bounds, pull_client                  planner_process: with the jar
"""
