"""What pages and API share: rendering, errors, paging, dependencies."""
