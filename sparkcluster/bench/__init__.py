"""What a model does, measured so that it can be trusted and compared: ``sparkcluster bench``.

- ``measure``: a run: cell after cell, while every node is sampled
- ``record``: what is kept of runs, on the machine where they were typed
- ``profiles``: which cells are measured: prompt, answer, context before it, requests at once
- ``child``: our end of the process that measures
- ``client``: that process: llama-benchy as a library, one cell after the other
- ``judge``: figures, marks, comparisons and tables; ``pictures`` and ``arena``: files of a run for others
- ``ab``: A, B and A again

``book.txt.gz`` is what prompts are cut from, since repeated filler makes drafts and caches look better than they are:
the New Testament of the King James Version (1611), 7,957 verses and 180,381 words in their order, five verses of a
chapter a paragraph, without their numbers; from Debian's package bible-kjv-text 4.38, whose copyright file says that
the copyright of the text has expired: it is in the public domain (in the United Kingdom the Crown's letters patent
restrict printing it).
"""
