"""One module per command: parse, call one function of another package, render, return the exit code.

``main`` looks up the command in ``commands`` and imports only its module. Flags shared by several commands are in
``common``; code shared by ``up``, ``upgrade``, ``rollback`` and ``restart`` is in ``change``. A command with much
output has a module ``NAME_view``; ``discover_work`` and ``setup_work`` do the work of interactive commands. ``output``
writes data to stdout and messages to stderr; ``progress`` shows live progress. ``drawing`` draws a cluster,
``cabling_view`` the cables before a cluster exists.
"""
