"""Programs that run on a Spark with its own python3 (3.10 or newer) and standard library; nothing is installed.

A program in ``node/`` is a module with ``main(request, lines)``. Its source, the sources it imports, and the request
are sent, compressed, to the standard input of ``python3 -I -S -c …``, a line that is the same for every program and
holds no user data (``hosts/program.py``). So a command is one round trip, nothing is installed or left behind, and no
user data is parsed by a shell. ``all_gather`` and ``launcher`` run inside a container, ``guard`` and ``door`` without
a controller; these have ``main(argv)`` instead.

For each program: what it changes; how long it runs.

- ``probe``: nothing; one answer, under a second
- ``survey``: nothing; for ``discover`` and ``setup``: hardware, cabling, settings; one answer
- ``inspected``: nothing; a container started by a user, for ``import``; one answer
- ``reach``: nothing, but listens on ports; two exchanges, under two seconds
- ``measure``: one container, for ``--deep`` only and under a lease; one measurement
- ``all_gather``: nothing; inside that container, an all-gather of 256 MiB, 90 s at most
- ``first_hour``: nothing for bundles, at most two containers for ``preflight --bundle``; one answer
- ``image``: the cache of image contents, by image ID, unless disabled; or counts the GPUs in a container; one answer,
  seconds, once per image
- ``agent``: files, containers, records, only under a lease; one list of steps
- ``lease``: the lock file of a lease or the start lock; while heartbeats arrive
- ``watch``: nothing; one launch, or one ``logs -f``
- ``ask``: nothing; one completion
- ``observe``: nothing; one answer, seconds, since counters are read twice
- ``vitals``: nothing; one sample per second until its input closes
- ``listing``: the record of verified files, only under a lease; as long as reading the weights takes
- ``worker``: copies files from other nodes, in a separate process that survives a lost connection; one copy
- ``image_files``: saves an image as blobs, or loads it; as long as Docker takes
- ``fetch``: downloads weights, in a separate process that survives a lost connection
- ``models``: nothing (the agent removes what ``--prune`` selects); one answer, as long as listing all files takes
- ``pull``: pulls an image, in a separate process that survives a lost connection
- ``build``: builds an image, in a separate process that survives a lost connection
- ``upload``: receives one file from the operator's machine: Ray, a vocabulary, weights, an image, a playbook file
- ``releases``: nothing; one answer
- ``memory``: nothing; until the memory of a stopped rank is free, a minute at most
- ``guard``: starts and stops its node's rank under its own lease, with the agent's functions; installed by ``enable``,
  started by systemd, runs until the cluster is disabled
- ``door``: forwards the gateway's requests to the guards of models on demand; installed with the gateway like a guard
- ``door_place``: nothing; address and token by which the door reaches a guard; one answer
- ``gateway_control``: forwards one request to the gateway on its node; one answer
- ``unit``: ends a guard that holds the lease, for ``disable``; one answer
- ``launcher``: inside the container, prepares ptxas, per-node variables and Ray; becomes the engine, or runs a worker's
  Ray until it ends; a child process looks for sockets that listen on all addresses

Files on a node
---------------

::

    ~/.local/state/sparkcluster/            state_dir of the inventory
    ├── start.lock  start.json              which cluster starts or stops ranks on this node
    ├── start-change.lock                   locked briefly when the start lock is granted
    ├── clusters/NAME/
    │   ├── lease.lock  lease.json          who may change it; the last epoch granted
    │   ├── lease-change.lock               held while one change runs
    │   ├── staging.lock  staging.json      the same for staging
    │   ├── staging-change.lock             held while one staging change runs
    │   ├── staging/HASH/                   the worker of a copy, by its root directory: a job
    │   ├── images/                         files of an image while it is copied
    │   ├── releases/000001.json            every verified release, newest 20
    │   ├── releases/000001.env             secrets of this node's rank, while it is a rollback target
    │   ├── start.json                      the steps that restart this node's rank of the last release
    │   ├── enabled/                        if the cluster is enabled: guard.py, config.json, journal.jsonl, and why
                                            the guard is waiting; of the gateway's cluster: the door
    │   ├── switch.json                     an unfinished switch from one release to another
    │   ├── run/                            of the gateway's cluster: control.sock of the gateway, door.sock of the door
    │   └── ranks/RANK/                     launcher.json, entry.py, bind.so, memory.json; with runtime process also
                                            log and rank.json
    ├── images/ID.json  layers.json         content of an image; layers of images as files
    ├── downloads/HASH/                     the download of weights: a job
    ├── builds/HASH/                        the build of an image: a job
    ├── pulls/HASH/                         the pull of an image: a job (`node/job.py`)
    │   ├── lock  followers                 held by its process; by programs that follow it
    │   └── state.json  orders              its progress and result; orders for a worker
    ├── models/HASH.jsonl                   of a model: SHA-256 of files that were read, and which files staging
                                            wrote
    ├── files/MARK/NAME  .whole             a playbook file or directory that is mounted or built; .whole is written
                                            last
    ├── vocabularies/HASH/NAME              a file that an engine would download at its start
    ├── ray/2.60.0-cp312-…/                 Ray for images without it, per Python and platform
    ├── ray/archives/2.60.0-cp312-…/        its archive, until it is unpacked
    └── caches/ID/bundled/PLAYBOOK/NAME/    compile caches, per image and playbook; `other` for playbooks that are not
                                            bundled, `other-user-USER` with `container.user`

The journal of ``setup`` is ``/var/lib/sparkcluster/setup/journal`` for root, and
``~/.local/state/sparkcluster/setup/journal`` for the login; ``saved/`` beside it has the original files.

``state_dir``, ``clusters`` and ``clusters/NAME`` must belong to the user of the node or to root. Others must not be
able to write to them; a group may write to the first two. Locks and JSON are opened without following links.
Otherwise ``lease``, and so every change, fails, and the probe reads neither lease nor record.

Docker has a tag ``sparkcluster/NAME:000001`` for the image of the node's rank of release 1, so that ``docker image
prune`` keeps it. Tags and secrets are kept for the releases with one of the three newest images; the next record
removes those of older releases.

Container labels have cluster, group, node, rank, release, plan hash, state directory, and the time limit for requests
to finish. Container names include the release, so that no container is ever renamed.

On the operator's machine, ``~/.local/state/sparkcluster/failed/NAME/`` keeps the last log lines of every rank of the
last failed launch, since the ranks are removed, and ``failure.json`` with the line that has the cause.
``staged/NAME.json`` there has the commit of each branch when it was first staged, and the last image of each name;
``accepted/HASH`` marks an accepted playbook. ``observed/NAME.jsonl`` has at most 500 lines of observations by commands:
gaps of pulls and SSH sessions, memory, durations, bandwidth. They are included in bundles.

Guards
------

``enable`` installs a guard on every node: the program and a token of the cluster. It starts what ``start.json`` has,
which the agent writes together with each record: the steps that started the rank, with the secrets on the node. So a
guard starts the last recorded release, and nothing that another node sends.

The head's guard checks its group every two seconds. It asks the guards of the other nodes for their state
(``node/wire.py``), and acts if all answer, none has a reason to wait, and the group is dead. Reasons to wait are:
``down`` was the last command, an operator has the lease, a switch is unfinished, a rank of another release runs,
Docker does not answer. All nodes must have the same release and epoch. Since each node counts its own epochs, the
number of leases granted to operators since the record is compared; it differs if an operator reached only some nodes.

A restart works like ``up``: start lock and lease on every node of the group, in the order of names, each held by its
own guard for as long as the conversation with the head lasts; check again; stop all ranks; start all; wait for an
answer. If the start fails, its ranks are stopped. The limit and the pauses are derived from the journal on the head's
disk, so that a reboot does not reset them. A group whose engine was dead while its ranks ran is restarted once in ten
minutes; then it is stopped. If a group stays down, each check stops ranks that still run; ranks that exited are kept
for their logs.

For a model on demand (``on_demand`` in the guard's config.json), the head's guard also listens, on the address of the
engine's API, for the ``door`` of the gateway's node, which has a separate token. Threads answer it with the result of
the last check, and note whether the model is wanted; only the main loop starts and stops ranks:

- wanted, and no rank runs: one start, ``load`` in the journal, which does not count as a restart. If it fails, or
  cannot begin within two minutes, the model is no longer wanted until it is requested again.
- wanted, and a rank has ended or the engine is dead: a restart as for any group, with its limit and pauses. A group
  that would then stay down until an operator starts it is no longer wanted.
- not wanted, and a rank runs: it is stopped, even while it starts.

When a guard begins, its model is wanted if it has served and all of its ranks run, for example after the guard was
killed. So no model is wanted after a reboot, and ranks that were still starting are stopped. While an operator has the
lease the model counts as starting, and while a node cannot be reached as unreachable: either may use memory.
"""
