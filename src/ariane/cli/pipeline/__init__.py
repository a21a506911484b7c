"""Commands of the pipeline: its jobs, reports, archives, and traces."""
