"""A cluster in virtual time: an event loop whose clock jumps, and a simulated network. Internal."""
