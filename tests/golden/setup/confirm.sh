#!/bin/sh
# The controller reaches this node by its new network.
if ! [ -e /run/sparkcluster/1763690000-4711.kept ] && ! mv /run/sparkcluster/1763690000-4711 /run/sparkcluster/1763690000-4711.kept; then
  echo 'netplan: failed: nothing waits for a confirmation'
  exit 1
fi
