"""Access control: accounts, permissions, and addresses that need no signature."""
