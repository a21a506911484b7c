"""`ariane …`: the commands, one module per noun. What a command needs is imported when it runs, so that servers start fast."""
