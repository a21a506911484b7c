"""The broker: takes messages, stores them, and hands them out. `broker.py` wires it; no other module knows all its parts."""
