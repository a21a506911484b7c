"""Options that several commands share, and the places that they name."""
