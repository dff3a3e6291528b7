"""Checks of what the nodes reached of one another."""
