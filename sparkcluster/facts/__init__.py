"""Typed, validated facts from nodes; a value that could not be read is an ``Unread`` with the reason.

``model`` has everything that the probe reports of a node, built from ``network`` (which HCA sends for an interface),
``docker``, ``weights`` and ``machine``. ``survey``: a machine before setup. ``running``: a running cluster, from
``observe``. ``between``: measurements between nodes. ``release_record``: the record of a release. ``engine`` tells
which image and Ray determine how a rank starts. ``probe`` and ``collect`` query the nodes.
"""
