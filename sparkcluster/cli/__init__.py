"""One module per command: parse, call one function of another room, render, exit code.

``main`` finds the command in ``commands`` and imports its module alone. Flags that several commands have are in
``common``; what ``up``, ``upgrade``, ``rollback`` and ``restart`` share, and their last lines, in ``change``; a
command that shows much has a module ``NAME_view``. ``output`` is what writes, data to stdout and talk to stderr, and
``progress`` what moves. ``drawing`` draws a cluster, ``cabling_view`` the cables before there is one.
"""
