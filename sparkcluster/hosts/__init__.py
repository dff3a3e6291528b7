"""Reaching machines."""
