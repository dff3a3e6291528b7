"""Finds a group's API (``find``), asks it (``ask``), and judges the answer (``judge``, ``dead``).

``connection`` describes the API as the user's clients reach it; ``clients`` has the settings for each client program.
"""
