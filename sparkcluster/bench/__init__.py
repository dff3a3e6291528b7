"""``sparkcluster bench``: reliable, comparable speed measurements of a model.

- ``measure``: a run: cell after cell, while every node is sampled
- ``record``: runs kept on the machine where they were started
- ``profiles``: the cells to measure: prompt, answer, context before it, concurrent requests
- ``child``: our end of the measuring process
- ``client``: the measuring process: llama-benchy as a library, one cell after the other
- ``judge``: figures, marks, comparisons and tables; ``pictures`` and ``arena``: files of a run for others
- ``ab``: A, B and A again

Prompts are cut from ``book.txt.gz``, since repeated filler text makes draft models and caches look too good. It is the
New Testament of the King James Version (1611), 7,957 verses and 180,381 words in order, five verses of a chapter per
paragraph, without their numbers. Source: Debian's package bible-kjv-text 4.38, whose copyright file says that the
copyright has expired: it is in the public domain (in the United Kingdom the Crown's letters patent restrict printing
it).
"""
