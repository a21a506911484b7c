"""Access control of servers: accounts, permissions, and addresses that need no signature."""
