#!/bin/sh
# Made by sparkcluster VERSION for node spark-a, where it can be run by hand: sudo sh FILE
# What was there before is kept in /var/lib/sparkcluster/setup. It can be run again at any time.
# sparkcluster setup INVENTORY --undo undoes it.
set -u
RUN_AS=root
MACHINE=0000000000000000000000000000000000000000000000000000000000000000
OPERATOR=me@laptop
LABEL=io.sparkcluster.cluster
NETPLAN=/etc/netplan/40-cx7.yaml
MTU=9000
PENDING=/run/sparkcluster-setup
TOP=/var/lib BELOW=sparkcluster

(common.sh)

(netplan.sh)

# RDMA and NCCL use all twins of a cable by their addresses (NVIDIA DGX Spark, connect two Sparks)
step_netplan() {
step=netplan
say 'an address for each twin in a subnet of its own, with MTU 9000, in /etc/netplan/40-cx7.yaml'
act set_netplan enp1s0f1np1=192.168.177.11/24 enP2p1s0f1np1=192.168.178.11/24 <<'END' || return 1
network:
  version: 2
  ethernets:
    enp1s0f1np1:
      addresses: [192.168.177.11/24]
      dhcp4: false
      link-local: []
      mtu: 9000
    enP2p1s0f1np1:
      addresses: [192.168.178.11/24]
      dhcp4: false
      link-local: []
      mtu: 9000
END
say done
}

main() {
  begin
  attempt step_netplan
  end
}

main </dev/null
