"""Checks of a cluster that runs: what ails it now."""
