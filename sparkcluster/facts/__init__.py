"""Typed facts: what a node said, checked; what could not be read is an ``Unread`` with the reason.

``model`` has all that the probe reports of a node, put together of ``network`` (which HCA sends for an interface),
``docker``, ``weights`` and ``machine``; ``survey`` what a machine reports before it is set up, ``running`` what
``observe`` reports of a cluster that runs, ``between`` what was measured between nodes, ``release_record`` the record
of a release. ``engine`` says which image and Ray decide how a rank starts. ``probe`` and ``collect`` ask the nodes.
"""
