"""Which messages a subscription wants: tag expressions (SQL92 comes with the broker's filter tables)."""
