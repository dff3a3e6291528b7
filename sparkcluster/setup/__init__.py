"""Find Sparks, bring each to what a cluster needs, and undo that."""
