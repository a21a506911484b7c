"""Files: the only door to the disk, segments of equal size, listings, fsyncs."""
