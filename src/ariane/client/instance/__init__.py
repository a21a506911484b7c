"""What all clients of a process share: connections, routes, names, settings, and the values that hooks receive."""
