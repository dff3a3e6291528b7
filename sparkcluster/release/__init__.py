"""Commands that change a cluster: ``up``, ``down``, ``stage``, ``upgrade``, ``rollback``, ``enable``, pruning.

The state table of ``up``
-------------------------

``up`` (``release/up.py``) reads the facts of every node and the answers of running groups, decides by the table
(``release/states.py``), checks, copies what is missing while the old release serves, takes the lease, reads and
decides again, stops, starts, verifies and records. Nodes are probed twice, before the lease and under it; later changes
are tracked (``release/rollout.py``). Each group starts, fails, stops and is replaced separately.

state: ranks of the group; what ``up`` does.
- EMPTY: no rank of this cluster; start: check, stage, start, watch, verify, record
- STARTED: the ranks of this plan run, and some node has no record of their verification; watch, verify, record
- SERVING: every rank of the newest release runs, and the plan is the same; ask
- OTHER: every rank of the newest release runs, and the plan differs; ask. Or unrecorded ranks of another plan run on
  every node; refuse, exit 1; ``--replace`` removes them and starts
- REMAINS: any other ranks of this cluster: some are missing, or there are others; remove them, then start
- TAKEN: ranks with the same name that belong to another cluster; refuse

after asking: what ``up`` does.
- SERVING, and it answers as its release expects: keep
- dead (``endpoint/dead.py``): remove its ranks, then start
- does not answer as its release expects, and is not dead: leave it, start the other groups, exit 1; ``--replace``
  removes its ranks and restarts it
- OTHER, or a secret's value has changed: print the difference, exit 1; ``--replace`` removes its ranks and restarts it
- addresses or GID indices have changed since the start: keep, and report the drift; ``--replace`` removes its ranks and
  restarts it

Each difference between a running group and the files has a class and a cost (``plan/cost.py``). ``plan`` shows them,
and ``up`` if it refuses:

class: what differs; cost.
- ``image``: the image; ``download`` if a node lacks it, else ``restart``; ``nothing`` if only its name differs
- ``weights``: model, revision, companion models; ``download`` if a node lacks them, else ``restart``
- ``arguments``: engine flags, environment, container options, members of the group; ``restart``; ``download`` if a node
  lacks what they need
- ``secrets``: names of secrets, and changed values; ``restart``
- ``addresses``: addresses, interfaces and GID indices since the start (drift); ``restart``
- ``text``: ``verify``, and text for people; ``nothing``

``restart``: the group restarts. ``download``: bytes are copied first, while the group serves; then it restarts. Files
that are missing on a node without such a difference are downloaded at every restart.

A group is dead if a rank is gone; if the engine itself reports it (HTTP 500 twice, and no token generated for others in
between); or if no counter of the engine changes while a request waits longer than the longest prefill
(``max_model_len`` at 200 tokens/s, at least 60 s). A time-out alone does not mean dead: a prompt of 256K tokens changes
no counter for minutes. Neither do unreadable counters.

A group is judged by the ``verify`` of its own release. A release records for every group: its plan, the release that
started it, its topology, salted slow hashes of its secrets, and whether it was verified. ``launcher.json`` has the
hashes from the start, so that a later ``up`` can record those of running ranks. If only some groups came up, they are
recorded, and the next ``up`` starts the others. Ctrl-C stops the groups that have not answered yet.

The state is read from the nodes, not from a journal, so an ``up`` that was killed at any point leaves a state that the
next ``up`` can handle.

The switch
----------

``up --replace``, ``upgrade`` and ``rollback`` replace running groups in the same way (``release/replacement.py``), one
after the other::

     read ─▶ stage ─▶ prove rollback target ─▶ measure ─▶ journal ─▶ stop ─▶ start ─▶ verify ─▶ compare ─▶ record
     (the old release serves; an error ends the switch, with nothing stopped)  │  any failure, or Ctrl-C
                                                                               ▼
                                  journal ─▶ stop the new release ─▶ start the old release ─▶ verify ─▶ record
                                                                               │  any failure
                                                                               ▼
                                                        exit 1, with the command to retry: rollback INVENTORY N

ended by: the state then; the next ``upgrade --resume``; the next ``up``.
- an error or a kill before the journal: the old release serves; verifies it; keeps it, or reports the difference
- a kill while the journal is written: the old release serves; keeps it; keeps it, and removes the journal
- a kill between journal and record: no ranks, some, or unrecorded ranks; continues, with the same rollback target;
  starts the plan of the files, with the same rollback target
- a kill during a rollback: as above; continues the rollback; as above
- a kill while a release is recorded: it serves; some nodes lack the record; records it on all; records it on all, or
  reports the difference
- a node that does not answer: as a kill at this point; the command exits with code 1 and names the node

- The rollback target (``release/rollback_target.py``) is the newest record on the group's head; nodes with another
  record, or none, are reported. The record is read and accepted (``spec/consent.py``) before anything is locked or
  stopped, and not read again; so is its image, unless it was started from this machine. The target is proven when
  every node has the recorded image under its kept tag, the weights, and the secrets of its rank. The image is run by
  that tag, whatever the playbook's reference means now.
- The journal (``release/replacement.py``) is ``switch.json`` on every node: the old release, the new playbook or the
  release to roll back to, and the groups. If a node lacks it, writing it was interrupted, and ``--resume`` rolls back.
  It is valid until every node has a record in which each of its groups has this number or a later one.
- A release that serves again is recorded under a new number. Groups that are switched in turn are recorded one by
  one; a record in the middle of a switch (``partial``) is not a rollback target.
- After a resume the rollback target covers the whole switch: groups that were switched before roll back too.
- ``--no-rollback`` leaves the failed ranks, and writes a bundle.
- A command that has lost the lease undoes nothing.

Whose record is used
--------------------

Every node of a cluster keeps the same record, but a node is only trusted about itself. A record decides about a group
only if it was read on the head that it names for the group (``recorded_release`` in ``plan/release_record.py``),
whatever numbers the records on other nodes have: endpoint, key file, plan and ``verify`` of a group come from its own
head.

- A worker that missed a record, or whose record is damaged or newer, has no influence.
- For a rollback, the record of a group's head is used, and a warning names nodes that differ.
- A group whose head missed the record counts as started but not recorded: the next ``up`` watches, verifies and
  records it.
- If the head does not answer or is no longer in the inventory, the record on another node of the group says which
  ranks belong together. In this case no endpoint is asked and no key is read.
- If two nodes claim to be the head of a group, rank 0 wins, then the order of the inventory.
- The head of the first group also provides number, model and image of the whole release. The next release's number is
  higher than the numbers on all nodes.

The program ``ask`` connects only to addresses of its own node, and reads the key only from a file that is private to
the node's user, in the directory of the head's rank.

A record also has the machines with their addresses, so that machines that left the inventory are not forgotten. They
are shown, with the nodes that name them, and only contacted if the user asks for it, with the inventory's SSH settings.
"""
