"""Appends records to the log, of a master or of a slave, and decides when their queue entries are written."""
