"""Find Sparks, bring each to what a cluster needs, and undo that.

Nothing but one shell script changes a node (``setup/script.py``): the one that ``--dry-run -v`` prints, that an
administrator runs by hand, and that sudo runs. What it does is decided before, from data: surveys → cabling →
addresses → changes.

A step is a module of ``setup/steps/`` and the functions of sh beside it; what it reads of a node is typed in
``facts/survey.py``, its entries in words are in ``setup/journal.py``. For a setting these are two, ``get_KIND``
and ``set_KIND``: a change is "get, record, set" (``change`` in ``common.sh``), its undo "get, set what was recorded"
(``undo_value`` in ``undo.sh``). Each change is in a journal before it is made, and a file is saved as it was before
the first change, so that all of it can be cut off anywhere and run again; a lost connection does not end it in the
middle of a change. What setup changed more than once keeps the number of its first entry. An undo puts back what was
saved if the present state is one that setup made; otherwise it leaves it and says so. A network is tried under a
guard on the node (``netplan.sh``): a process in a session of its own that alone takes it back, after 60 s or once the
script says so, unless somebody took the old state from it, which confirms.

The undo's script reads the journal on the node. Root acts on root's journal alone, which nobody else may write, and
believes it; the journal of the login undoes, as the login, what the login may change. What a node reports of its
journals is shown, and decides which steps have something to undo; nothing of it gets into a script.

A netplan file is tried in ``/run/netplan``, so that a reboot takes it back, and a guard on the node (a transient
service where systemd is the init, else a process in a session of its own) takes it back after 60 s unless the script
found all addresses and the controller, over a new connection, confirmed: who confirms renames the mark that the guard
would take.
"""
