"""The web console: to come. It will read the pipeline's tables through `ariane.tables` and never load Spark."""
