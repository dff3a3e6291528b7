"""Programs that run on a Spark, with its own python3 (3.10 or newer), its standard library, and nothing installed.

A program in ``node/`` is a module with ``main(request, lines)``. Its source, the sources it needs, and the request go
in, compressed, through the standard input of one ``python3 -I -S -c …`` line that is the same for every program and
holds no user data (``hosts/program.py``). So one command is one round trip, nothing has to be installed, nothing is
left behind, and no value of the user's is ever parsed by a shell. ``all_gather`` and ``launcher`` run inside a
container, ``guard`` and ``door`` without a controller; they have ``main(argv)`` instead.

program: changes something; lives for.
- ``probe``: no; one answer, under a second
- ``reach``: no; it listens while it runs; two exchanges, under two seconds
- ``measure``: ``--deep`` alone: one container, under a lease; one measurement
- ``all_gather``: no; it runs inside that container; an all-gather of 256 MiB, 90 s at most
- ``first_hour``: for bundles: no; for ``preflight --bundle`` two containers at most; one answer
- ``image``: caches the content of an image, by image ID, unless told not to, or counts the GPUs of a container of it;
  one answer, seconds, once per image
- ``agent``: yes: files, containers, records. Only under a lease; one list of steps
- ``lease``: its lock file, or the start lock; as long as heartbeats come
- ``watch``: no; one launch, or one ``logs -f``
- ``ask``: no; one completion
- ``observe``: no; one answer, seconds: counters are read twice
- ``vitals``: no; a sample a second, until its input closes
- ``listing``: the record of verified files, under a lease; without one, for ``--hash``, nothing; as long as the weights
  take to read
- ``worker``: files that other nodes have, in a process of its own; one copy; that process outlives the operator's
  connection
- ``image_files``: the blobs of an image, or an image of them; as long as Docker takes
- ``fetch``: downloads weights, in a process of its own; one download; that process outlives the operator's connection
- ``models``: no; what ``--prune`` removes, the agent removes; one answer, as long as all files take to be listed
- ``pull``: pulls an image, in a process of its own; one download; that process outlives the operator's connection
- ``build``: builds an image, in a process of its own; one build; that process outlives the operator's connection
- ``upload``: one file from the operator's machine: Ray, vocabularies, weights, an image, what a playbook mounts; one
  file
- ``releases``: no; one answer
- ``memory``: no; until the memory of a stopped rank is back, a minute at most
- ``guard``: of its own node: starts and stops its rank under its lease, by the agent's functions; installed by
  ``enable``, started by systemd; until the cluster is disabled
- ``door``: tells the guards of models on demand what the gateway wants; installed with the gateway, as a guard is
- ``unit``: ends a guard that has the lease, for ``disable``; one answer
- ``launcher``: inside the container: ptxas link, names that stay per node, Ray; becomes the engine, or runs a
  worker's Ray until it ends; a process beside it looks for sockets on all addresses

Files on a node
---------------

::

    ~/.local/state/sparkcluster/            state_dir of the inventory
    ├── start.lock  start.json              which cluster starts or stops ranks on this node
    ├── start-change.lock                   (`node/start_lock.py`)
    ├── clusters/NAME/
    │   ├── lease.lock  lease.json          who may change it; the last epoch granted
    │   ├── lease-change.lock               held while one change runs
    │   ├── staging.lock  staging.json      likewise, who may stage for it
    │   ├── staging-change.lock             held while one change of a staging runs
    │   ├── staging/HASH/                   the worker of one copy, by its root: a job as in pulls/HASH
    │   ├── releases/000001.json            every verified release, newest 20
    │   ├── releases/000001.env             the secrets of this node's rank of it, as long as it can be gone back to
    │   ├── start.json                      what starts this node's rank of the recorded release again
    │   ├── enabled/                        of an enabled cluster: guard.py, config.json, journal.jsonl, and what the
                                            guard waits for, but for an operator
    │   ├── switch.json                     the switch from one release to another that is under way
    │   └── ranks/RANK/                     launcher.json, entry.py, bind.so, memory.json; with runtime process also
                                            log and rank.json
    ├── images/ID.json                      content of an image
    ├── downloads/HASH/                     the download of weights: a job, likewise
    ├── builds/HASH/                        the build of an image: a job, likewise
    ├── pulls/HASH/                         the pull of an image: a job (`node/job.py`), which outlives who began it
    │   ├── lock  followers                 held by its process; by the programs that follow it
    │   └── state.json  orders              how far it is, and how it ended; what operators ordered of a worker
    ├── models/HASH.jsonl                   of a model: SHA-256 of files that were read, and which of them staging
                                            wrote
    ├── files/MARK/NAME  .whole             what a playbook mounts or builds of its own directory, a file or a
                                            directory; written last
    ├── vocabularies/HASH/NAME              what an engine would download when it starts
    ├── ray/2.60.0-cp312-…/                 Ray for images without one, apart for each Python and platform
    ├── ray/archives/2.60.0-cp312-…/        the same as it came, until it is unpacked
    └── caches/ID/bundled/PLAYBOOK/NAME/    compile caches, kept apart per image and playbook; `other` of those not
                                            bundled,
                                            and `other-user-USER` with `container.user`

Root's journal of ``setup`` is ``/var/lib/sparkcluster/setup/journal``, the login's
``~/.local/state/sparkcluster/setup/journal``, each with the files as they were in ``saved/``.

``state_dir``, ``clusters`` and ``clusters/NAME`` must belong to the user of the node or to root, and others may not
write to them (a group to the first two may); locks and JSON are opened without following links. Otherwise ``lease``,
and with it every change, ends with an error, and the probe reads neither lease nor record.

Docker has a tag ``sparkcluster/NAME:000001`` on the image of the node's rank of release 1, so that ``docker image
prune`` leaves it. Tags and secrets are kept of the releases that run one of the three newest images; the next record
removes those of older ones.

Container labels name cluster, group, node, rank, release, plan hash and state directory, and how long requests may
finish. Container names carry the release, so that nothing is ever renamed.

Where ``up`` was typed, ``~/.local/state/sparkcluster/failed/NAME/`` keeps the last log lines of every rank of the
last launch that failed, since the ranks themselves are removed, and in ``failure.json`` there the line that says why.
``~/.local/state/sparkcluster/staged/NAME.json`` has what each branch named when it was first staged, and which image
a name had last; ``accepted/HASH`` there is the mark of an accepted playbook. ``observed/NAME.jsonl`` has at most 500
lines of what commands saw: gaps of pulls and SSH sessions, memory, seconds, bandwidth. Bundles take it along.

Guards
------

``enable`` gives every node a guard: the program, a token of the cluster, and nothing that decides. What it starts is
``start.json``, which the agent writes with each record, in the same request: the steps that started the rank, with
the secrets that the node keeps. So a guard starts what was recorded last, and nothing that another node sends.

The head's guard looks at its group every two seconds: it asks the guards of the other nodes how they are
(``node/wire.py``), and acts if all answer, none has a reason to wait, and the group is dead. A reason is:
``down`` was the last command, an operator has the lease, a switch is unfinished, a rank of another release runs,
Docker does not answer. Their releases must be the same, and so must their epochs: since each node counts its own,
compared is how many leases operators were granted since the record. An operator who reached only one node makes them
differ.

A restart is what ``up`` does: start lock and lease on every node of the group, in the order of names, each by its own
guard and as long as the conversation with the head lasts; look again; stop all ranks; start all; wait for an answer.
What failed is stopped. The cap and the pauses are those of the journal on the head's disk, so that a reboot does not
reset them. A group whose engine was dead while its ranks ran is restarted once in ten minutes; then it is stopped.
Of a group that is left down, each look stops what still runs; what ended stays, for its log.

Of a model on demand (``on_demand`` in the guard's config.json), the head's guard also listens, where the engine's API
does, for the ``door`` of the gateway's node, which has a token of its own for that. Threads answer it, from what the
last look saw, and note whether the model is wanted; the loop alone starts and stops:

- wanted, and no rank runs: one start, ``load`` in the journal, which is none of the restarts that are counted. If it
  fails, or cannot begin within two minutes, the model is not wanted any more, until it is wanted anew.
- wanted, and a rank has ended or the engine is dead: a restart as of any group, with its cap and pauses. What would be
  left down after that, until an operator starts it, is not wanted any more.
- not wanted, and a rank runs: it is stopped, also while it starts.

When a guard begins, its model is wanted if it has served and all of its ranks run, as after the guard was killed. So
nothing is after a reboot, and ranks that were still starting are stopped. While an operator has the lease the model
counts as starting, and while a node cannot be reached as unreachable: either may take memory.
"""
