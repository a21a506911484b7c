"""Replication: a master feeds its slaves, a slave follows its log and its state."""
