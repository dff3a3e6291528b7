"""Where a group's API is, asking it, and judging the answer."""
