"""Inspecting a cluster: what each command shows of it. Changes nothing on a node.

``cluster.see`` queries the nodes once and returns a ``View``: their facts, the running ranks, the recorded release and
the API endpoints. ``state`` reduces it to one word. ``observing`` reads more: the activity of the ranks, and answers of
their groups. Between nodes, ``reach`` tests connectivity, ``deep`` runs the link measurements listed in
``measurements``, and ``hashes`` compares weights.
"""
