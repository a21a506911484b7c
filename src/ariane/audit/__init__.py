"""Audit logs: who changed what, from where and with which result, as lines of JSON in private files."""
