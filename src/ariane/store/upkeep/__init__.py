"""A store while it runs: flushed, freed of old files, and watched for files that others remove."""
