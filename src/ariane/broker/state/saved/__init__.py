"""Forms in which state is saved: documents of config/, and the log of their changes in between. Below all kinds of state."""
