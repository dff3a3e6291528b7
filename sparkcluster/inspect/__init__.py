"""Inspecting a cluster: status, logs, doctor, preflight, bundle, history and ask. Nothing on a node is changed."""
