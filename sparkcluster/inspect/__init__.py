"""Inspecting a cluster: what each command shows of it. Nothing on a node is changed.

``cluster.see`` queries the nodes once, and every command reads the ``View`` that it returns: what they answered, which
ranks run, what is recorded and where its APIs are. ``state`` calls that one word. ``observing`` asks further: what the
ranks do, and what their groups answer. Between nodes ``reach`` tries who reaches whom, ``deep`` measures the links by
the list in ``measurements``, and ``hashes`` compares weights.
"""
