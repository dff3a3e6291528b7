"""Reaching machines: a ``Host`` runs commands and programs, by SSH, here, or in tests as ``fake`` scripts it.

``connect`` makes hosts of addresses; ``resolve`` asks ``ssh -G`` how one is reached, ``handshake`` opens the
connection, with ``known_hosts`` and ``own_key``. ``Fleet`` runs a function on many hosts at once and returns every
outcome. ``program`` sends a module of ``node/`` with its request to a node and reads its answers. Of paramiko only
``ssh``, ``channel``, ``handshake`` and ``paramiko_transport`` know.
"""
