"""The command line `ariane`: one module per command. Commands import their dependencies when they run: servers start fast."""
