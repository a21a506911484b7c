"""HTML routes, one module per area."""
