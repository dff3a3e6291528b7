"""Checks of what was measured between the nodes."""
