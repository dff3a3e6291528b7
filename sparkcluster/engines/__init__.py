"""Inference engines, one directory each: all that is known of an engine stands in its directory."""
