"""How commands print: tables, plots, messages, JSON, HTML and help."""
