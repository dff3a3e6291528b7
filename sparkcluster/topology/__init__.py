"""Which node has which rank, address, interface and HCAs, from spec and facts. Pure.

``candidates`` says which interfaces may be the interconnect, and ``build`` which of them are used and how a group is
cabled; ``model`` has the types, among them the kinds of cabling. ``parallel`` spreads a model over the nodes and
chooses the executor. ``recorded`` is the topology that a release was started with, and what has drifted since.
``netplan`` is the file that gives twins addresses, ``vocabularies`` where a rank finds those that are brought to it.
"""

from sparkcluster.topology.build import build as build
