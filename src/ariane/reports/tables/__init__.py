"""The pipeline's tables for reports: views, freshness, time ranges and histograms in DuckDB."""
