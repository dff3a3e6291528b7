"""Find Sparks, prepare each for a cluster, and undo these changes.

One shell script changes a node (``setup/script.py``). ``--dry-run -v`` prints it, and an administrator may run it by
hand. Python decides its content beforehand: surveys → cabling → addresses → changes.

A step is a module of ``setup/steps/`` with shell functions in a file of the same name. ``facts/survey.py`` types what a
step reads from a node; ``setup/journal.py`` describes journal entries. A setting has two functions, ``get_KIND`` and
``set_KIND``. A change is "get, record, set" (``change`` in ``common.sh``), its undo "get, set the recorded value"
(``undo_value`` in ``undo.sh``). Before a change, the journal records it and the original file is saved, so an
interrupted script can be run again. A lost connection does not interrupt a change. Entries of one target have the
number of its first entry, which names the saved file. An undo restores the saved state if the present state was written
by setup; otherwise it leaves the target unchanged and reports it.

A netplan file is first tried in ``/run/netplan``, which a reboot clears. A guard on the node (``netplan.sh``), a
process in its own session, rolls it back after 60 s unless the script found all addresses and the controller confirmed
over a new connection. Confirming renames the marker file, so the guard does not roll back.

The undo script reads the journal on the node. Root acts only on root's journal, which only root can write; the login's
journal is undone as the login. The journals that a node reports are displayed and select the steps to undo; they are
never inserted into a script.
"""
