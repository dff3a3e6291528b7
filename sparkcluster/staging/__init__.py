"""Weights, images and Ray to every node, and what is read of a model before that."""
