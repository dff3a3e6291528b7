"""Assigns rank, address, interface and HCAs to each node, from spec and facts. Pure.

``candidates`` finds the interfaces that may be the interconnect. ``build`` selects the ones to use and determines the
cabling. ``model`` has the types, among them the kinds of cabling. ``parallel`` distributes a model over the nodes and
selects the executor. ``recorded`` is the topology that a release was started with, and its drift. ``netplan`` is the
file that assigns addresses to twins. ``vocabularies``: where a rank finds the vocabularies that are staged for it.
"""

from sparkcluster.topology.build import build as build
