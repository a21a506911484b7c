"""What pages and API share: access of requests, rendering, errors, paging, dependencies."""
