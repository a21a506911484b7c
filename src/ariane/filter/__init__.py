"""Which messages a subscription wants: tag expressions (`tags`), SQL92 on properties (`sql`), and the bloom filter of the
broker's filter tables (`bloom`). Pure: text in, answers out.

    expression ─ lexer → tokens ─ parser → tree ─ evaluate → a function of a property map
"""
