"""Message filters: tag expressions (`tags`), SQL92 on properties (`sql`), and the bloom filter of the broker's filter tables
(`bloom`). Pure functions.

    expression ─ lexer → tokens ─ parser → tree ─ evaluate → a function of a property map
"""
