"""Where a group's API is (``find``), asking it (``ask``), and judging the answer (``judge``, ``dead``).

``connection`` is the API as a client of the user reaches it, and ``clients`` with its table what each client is told.
"""
