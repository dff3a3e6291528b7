"""From Sparks as they come out of the box to nodes that are ready."""
