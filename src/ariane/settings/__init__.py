"""Configuration of the servers: one mechanism for broker.conf and namesrv.conf.

definitions   a setting: key, type, default, unit, constraint, meaning, read from the fields of a msgspec struct
schema        all settings of a server: load a file, check values, apply changes of a running server
unknown_keys  keys of RocketMQ that are not settings here: without effect, unsupported, unknown
connections   the settings that every server has
reference     docs/configuration.md, generated from the definitions
"""
