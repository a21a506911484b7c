"""State at a start: what config/ holds, examined and completed from the change log. Above all kinds of state."""
