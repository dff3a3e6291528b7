"""Inspecting a cluster: what each command shows of it. Starts, stops and records no rank.

On a node only caches remain: the content of images, and hashes of weights. ``deep`` and ``first_hour`` start
containers, and remove them.

``cluster.see`` queries the nodes once and returns a ``View``: their facts, the running ranks, the recorded release and
the API endpoints. ``state`` reduces it to one word. ``observing`` reads more: the activity of the ranks, and answers of
their groups. Between nodes, ``reach`` tests connectivity, ``deep`` runs the link measurements listed in
``measurements``, and ``hashes`` compares weights.
"""
