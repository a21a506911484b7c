"""Reports and charts over the pipeline's tables."""
