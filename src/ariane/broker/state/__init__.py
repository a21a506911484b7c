"""State of the broker other than messages, one kind per module: topics, groups, offsets, members, locks.

Each is a table with rules, and receives the time where it needs it. Tables that survive a restart are stored in Java's
config/*.json (`saved.json_documents`), and their changes in between in a log (`saved.change_log`).
"""
