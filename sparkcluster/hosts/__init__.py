"""Connections to machines: a ``Host`` runs commands and programs over SSH or locally.

``connect`` turns addresses into hosts. ``resolve`` asks ``ssh -G`` how to reach an address. ``handshake`` opens the
connection, with ``known_hosts`` and ``own_key``. ``Fleet`` runs a function on many hosts at the same time and returns
every outcome. ``fake`` is a scripted host for tests. ``program`` sends a module of ``node/`` with its request to a node
and reads its answers. Only ``ssh``, ``channel``, ``handshake`` and ``paramiko_transport`` use paramiko.
"""
