"""The tables, a file for each topic: columns with types, meaning and sources. `ariane.tables` exports them all."""
