"""The steps that start and stop one rank, the lease and the secrets: every change of a node goes through here.

The lease
---------

Every change goes through the ``agent``, which first takes the node's change lock and then checks two things: that the
epoch it was sent is the last one granted on this node, and that the lease is still valid. The holder is a process on
each node, at the end of the operator's own SSH connection. It holds a ``flock`` for as long as heartbeats arrive
(every 3 s) and releases it 60 s after the last, or at once when the connection ends. A controller that was stopped in
the middle, or cut off, is rejected by every node from then on (next section). Each node counts its own, so what one
node says is of no consequence on another.

Staging has a lease of its own, with its own epochs and files (``kind: staging``), and the same rules: two stagings of
one cluster exclude each other; a staging and what serves, starts or stops do not. ``up`` takes it only where
something is missing, and gives it back before the start. ``preflight --deep`` takes both, since a copy would share
the links it measures.

The start lock of a node is a lease as well (``kind: start``), and all clusters of the node share it. ``up``,
``upgrade``, ``rollback``, ``restart`` and guards hold it from before the first rank is stopped until the group has
answered, and ``down`` while it stops; nobody while files are copied. It is taken on every node of the group or on none,
so that two commands that need the same nodes never wait for each other. Where another cluster has ranks, it is granted
once MemAvailable has been stable for 5 s.

The lease of the first node by name is taken before the others, so of two operators that start at the same time
exactly one proceeds.

Three things close the gaps in between. From the moment the lock is taken the last epoch is over, though the next one
is not granted yet. Before an epoch is granted, a change that outlived its operator has ended. And every change
carries the time at which it was sent, so that a start that was interrupted cannot arrive after the stop that followed
it.

A silent connection is not a dead rank
--------------------------------------

A rank lives on its node, not at the end of the operator's connection: WiFi roams, a Spark that loads a model stalls
its sshd for seconds, a laptop sleeps. So silence ends the command, never a rank, a pull or a copy on a node.

There is one way to wait. A node that says nothing for 60 s (``SILENT_S`` in ``hosts/base.py``), or whose connection
breaks, is given up: a ``HostSilent`` (``HostTimeout``, ``HostLost``, ``HostUnknown``, ``HostRefused``,
``CommandTimeout``). The command ends with exit code 1, names the silent nodes, and says which command continues what
goes on there. Nothing is sent twice, and nothing connects again but the log stream of ``logs -f``, which goes on
where it was (``from``), so that no line is missing or comes twice.

what waits: after a silence.
- the watch of a launch (``release/group.py``): after 7 s without a report the node is named; after 60 s, or when the
  connection breaks, the command ends. The ranks are left running: the next ``up`` continues with them
- a change (``runtime/change.py``): ends; a stop that was sent is carried out. A start that arrives after the stop
  that followed it is refused (``order``)
- the lease (``runtime/lease.py``, ``node/lease.py``): held until 60 s after the last heartbeat, or the end of the
  connection. Then it is lost: every change ends with ``LeaseLost``
- a question to the model (``release/verify.py``): ends; it says nothing of the engine
- a copy, a pull, a download, a build (``staging/``): ends for this node; its worker goes on, and the same command
  follows it

A rank that ends, a cable that is out and a wrong answer are failures: the ranks are stopped on every node that
answers, and those that were left are named. ``ready_timeout_s`` ends a launch that never answers.
"""

from sparkcluster.runtime.change import Changer
from sparkcluster.runtime.ranks import start_steps, stop_steps

__all__ = ["Changer", "start_steps", "stop_steps"]
