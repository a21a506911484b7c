"""What the broker knows besides messages, one kind a file: topics, groups, offsets, members, locks.

Each is a table with rules, given the time where it needs it; those that survive a restart are read and written as Java's
config/*.json (`documents`).
"""
