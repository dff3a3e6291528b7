"""The steps that start and stop a rank, the lease, and the secrets.

Every change of ranks and records goes through this room. ``setup`` and the programs of ``staging`` change files
themselves; staging does so under a lease of this room. Guards start and stop ranks without a controller, with the
agent's functions.

The lease
---------

Every change of ranks and records goes through the ``agent``. It takes the node's change lock and then checks that the
epoch in the request is the last one granted on this node, and that the lease is still valid. The lease is held by a
process on each node, at the end of the operator's SSH connection. It holds a ``flock`` while heartbeats arrive (every
3 s), and releases it 60 s after the last one, or immediately when the connection ends. So a controller that was
suspended or cut off is rejected by every node from then on (next section). Each node counts its own epochs; a node's
answer affects no other node.

Staging has its own lease, with its own epochs and files (``kind: staging``), and the same rules. Two stagings of one
cluster exclude each other; staging does not exclude serving, starting or stopping. ``up`` takes it only if something
is missing, and releases it before the start. ``preflight --deep`` takes both, since a copy would share the links that
it measures.

The start lock of a node is also a lease (``kind: start``), shared by all clusters of the node. ``up``, ``upgrade``,
``rollback``, ``restart`` and guards hold it from before the first rank is stopped until the group has answered;
``down`` holds it while it stops ranks. It is not held while files are copied. It is taken on every node of the group or
on none, so that two commands that need the same nodes never wait for each other. If another cluster has ranks on the
node, it is granted once MemAvailable has been stable for 5 s.

The lease of the first node by name is taken before the others, so if two operators start at the same time, exactly one
proceeds.

Three rules prevent races. Once the lock is taken, the last epoch is over, even before the next one is granted. An epoch
is granted only after a change by the previous operator has ended. Every change carries the time at which it was sent,
so an interrupted start cannot arrive after the stop that followed it.

A silent connection is not a dead rank
--------------------------------------

A rank runs independently of the operator's connection: WiFi roams, a Spark that loads a model stalls its sshd for
seconds, a laptop sleeps. So silence ends the command, never a rank, a pull or a copy on a node.

A node is given up if it sends nothing for 60 s (``SILENT_S`` in ``hosts/base.py``), or if its connection breaks: a
``HostSilent`` (``HostTimeout``, ``HostLost``, ``HostUnknown``, ``HostRefused``, ``CommandTimeout``). The command exits
with code 1, names the silent nodes, and says which command continues the work there. Nothing is sent twice. Only the
log stream of ``logs -f`` reconnects; it continues where it stopped (``from``), so no line is missing or repeated.

What is waiting, and what happens after a silence:

- the watch of a launch (``release/group.py``): after 7 s without a report the node is named; after 60 s, or when the
  connection breaks, the command ends. The ranks keep running; the next ``up`` continues with them
- a change (``runtime/change.py``): ends; a stop that was sent is carried out. A start that arrives after the stop
  that followed it is refused (``order``)
- the lease (``runtime/lease.py``, ``node/lease.py``): held until 60 s after the last heartbeat, or until the
  connection ends. Then it is lost: every change ends with ``LeaseLost``
- a request to the model (``release/verify.py``): ends; this says nothing about the engine
- a copy, a pull, a download, a build (``staging/``): ends for this node; its worker continues, and the same command
  follows it

A rank that exits, an unplugged cable and a wrong answer are failures: the ranks are stopped on every node that answers;
ranks that could not be stopped are named. ``ready_timeout_s`` ends a launch that never answers.
"""

from sparkcluster.runtime.change import Changer
from sparkcluster.runtime.ranks import start_steps, stop_steps

__all__ = ["Changer", "start_steps", "stop_steps"]
