"""Typed facts of a Spark, parsed from the output of the probe."""
