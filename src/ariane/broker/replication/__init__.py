"""Replication: a master feeds its slaves, a slave copies log and tables."""
