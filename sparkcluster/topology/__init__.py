"""Which node has which rank, address, interface and HCAs, from spec and facts. Pure."""

from sparkcluster.topology.build import build
from sparkcluster.topology.model import Group, Link, Member, Rail, Topology

__all__ = ["Group", "Link", "Member", "Rail", "Topology", "build"]
