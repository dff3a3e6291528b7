"""Checks of the weights as they lie on the nodes."""
