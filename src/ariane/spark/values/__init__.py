"""Columns `value` and `value_error`: bodies decoded by a schema, in the task that reads them.

options ─→ columns ─→ json_bodies | avro_bodies | protobuf_bodies ─→ Arrow (`value_types`)
                          └─ framing, registry: the schema of the writer
"""
