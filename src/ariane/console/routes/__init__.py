"""Routes of areas: `pages` for browsers and `api` for programs, over the same views and changes."""
