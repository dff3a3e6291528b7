"""Which node has which rank, address, interface and HCAs, from spec and facts. Pure."""

from sparkcluster.topology.build import build as build
