"""Protobuf messages and our values: messages and properties, settings, statuses, receipt handles, checks of names and sizes."""
