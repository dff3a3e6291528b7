"""What changes a cluster: ``up``, ``down``, ``stage``, ``upgrade``, ``rollback``, ``enable`` and ``models --prune``.

The state table of ``up``
-------------------------

``up`` goes one way (``release/up.py``): see (facts of every node, and the answers of the groups that should answer),
decide by the table (``release/states.py``), check, copy what is missing while what serves goes on, take the lease, see
and decide again, stop, start, verify, record. Nodes are probed twice, before the lease and under it; what was done
since is known (``release/rollout.py``). Each group starts, fails, is stopped and is replaced separately.

state: ranks of the group; what ``up`` does.
- EMPTY: no rank of this cluster; start: check, stage, start, watch, verify, record
- STARTED: the ranks of this plan run, and some node has no record that they have answered; watch, verify, record
- SERVING: every rank that the newest release recorded runs, and the plan would do the same; ask
- OTHER: likewise, and the plan would do something else; ask. Or ranks of another plan run on every node, and no
  release recorded them; refuse, exit 1; ``--replace`` cleans them
- REMAINS: any other ranks of this cluster: some are gone, or there are others; clean, then start
- TAKEN: ranks with the same name of another cluster; refuse

after asking: what ``up`` does.
- SERVING, and it answers as its release expects: keep
- dead (``endpoint/dead.py``): clean, then start
- does not answer as its release expects, and is not dead: leave it, start the other groups, exit 1; ``--replace``
  cleans it
- OTHER, or a secret has another value than it was started with: print the difference, exit 1; ``--replace`` cleans it
- its addresses or GID indices are no longer those it was started with: keep, and report the drift; ``--replace``
  cleans it

What differs between what a group runs and what is written has a class and a cost (``plan/cost.py``), shown by
``plan`` and where ``up`` refuses:

class: what differs; cost.
- ``image``: the image; ``download`` where a node lacks it, else ``switch``; ``nothing`` if only its name differs
- ``weights``: model, revision, what is loaded beside the model; ``download`` where a node lacks them, else ``switch``
- ``arguments``: engine flags, environment, options of the container, members of the group; ``switch``; ``download``
  where a node lacks what they need
- ``secrets``: names of secrets, and values that are others than in use; ``switch``
- ``addresses``: addresses, interfaces and GID indices since the start (drift); ``switch``
- ``text``: ``verify``, and what only people read; ``nothing``

``switch``: the group restarts. ``download``: bytes move first, while the group serves, then it restarts. What is
missing on a node and has no difference of its own is a download of every restart.

Dead is, everywhere: a rank is gone, the engine itself reports it (HTTP 500, twice, and no token generated for others
in between), or no counter of the engine moves while a request waits for longer than the longest prompt takes to
prefill (``max_model_len`` at 200 tokens/s, 60 s at least). A time-out alone is not: a prompt of 256K tokens moves no
counter for minutes. Nor are counters that cannot be read.

A group is judged by the ``verify`` of its own release. A release records every group: what it runs, since which
release, its topology, salted slow hashes of its secrets, and whether it has answered. The hashes are in
``launcher.json`` from the start, so that a later ``up`` records those of the ranks that run. Where only some groups
came up, they are recorded, and the next ``up`` starts the others. Ctrl-C stops the groups that have not answered yet.

Because the state is read from the nodes and not from a journal, an ``up`` that was killed at any point leaves a state
that the next one handles.

The switch
----------

``up --replace``, ``upgrade`` and ``rollback`` replace groups that serve in the same way
(``release/replacement.py``), one after the other::

     look ──▶ stage ──▶ prove the way back ──▶ measure ──▶ journal ──▶ stop ──▶ start ──▶ verify ──▶ compare ──▶ record
     (the old release serves; any error ends it here, with nothing stopped)     │  any failure, or Ctrl-C
                                                                                ▼
                                      journal ──▶ stop what is there ──▶ start the old release ──▶ verify ──▶ record
                                                                                │  any failure
                                                                                ▼
                                                        exit 1, with the command that remains: rollback INVENTORY N

ended by: the state then; the next ``upgrade --resume``; the next ``up``.
- an error or a kill before the journal: the old release serves; verifies it; keeps it, or names the difference
- a kill while the journal is written: the old release serves; keeps it; keeps it, and removes the journal
- a kill between journal and record: nothing, some ranks, or ranks that no release recorded; goes on, with the same
  way back; starts what is written, with the same way back
- a kill while going back: likewise; goes on going back; likewise
- a kill while a release is recorded: it serves; some nodes lack the record; records it on all; records it on all, or
  names the difference
- a node that is silent: as a kill there; the command ends with exit code 1 and names it

- The way back (``release/rollback_target.py``) is the newest record that the group's head has; a node with another
  one, or none, is named. It is read and accepted (``spec/consent.py``) before anything is locked or stopped, and not
  read again; so is its image, unless it was started from this machine. It is proven when every node has the recorded
  image by the tag that keeps it, its weights, and the secrets of its rank. The image runs by that tag, whatever the
  playbook's reference stands for now.
- The journal (``release/replacement.py``) is ``switch.json`` on every node: from which release, to which playbook or
  back to which release, which groups. If a node lacks it, it was cut off while it was written, and ``--resume``
  goes back. It counts until every node has a record in which each of its groups has its number or a later one.
- A release that serves again is recorded under a new number. Groups that are switched in turn are recorded one by
  one; a record in the middle of a switch (``partial``) is nothing to go back to.
- After a resume the way back is that of the whole switch: groups that were switched before go back too.
- ``--no-rollback`` leaves the ranks that failed, and writes a bundle.
- Who has lost the lease takes nothing back.

Whose record counts
-------------------

Every node of a cluster keeps the same record, but what a node says is a statement about that node alone. So a record
decides about a group only if it was read on the head that it names for the group (``recorded_release`` in
``plan/release_record.py``), whatever numbers the records on other nodes have: endpoint, key file, plan and ``verify``
of a group are what its own head recorded.

- A worker that missed a record, or whose record is damaged or newer, changes nothing.
- Where an older release is to serve again, the record that the head of a group has is used, and a warning names nodes
  that differ.
- A group whose head missed the record counts as started and not recorded: the next ``up`` watches, verifies and
  records it.
- If the head does not answer or is no longer in the inventory, the record on another node of the group says which
  ranks belong together. In this case no endpoint is asked and no key is read.
- If two nodes claim to be the head of one group, the one with rank 0 precedes, then the order of the inventory.
- The head of the first group also says number, model and image of the whole release. The next release's number is
  above all that any node has.

The program ``ask`` connects to addresses of its own node alone, and reads the key only from a file that is private to
the node's user, in the directory of the head's rank.

A record also names machines with their addresses, so that those that left the inventory are not forgotten. They are
shown, with the nodes that name them, and contacted after the user said so, with the SSH settings of the inventory.
"""
