"""The broker: takes messages, stores them, and hands them out. `broker.py` wires it; nobody else knows all its parts."""
