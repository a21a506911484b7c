"""Records as brokers store them to Arrow columns, for those who pull them and those who find them in files. No I/O."""
