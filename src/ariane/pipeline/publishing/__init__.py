"""How tables change: files written and committed, rows that depend on a change found, computed and replaced."""
