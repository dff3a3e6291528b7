#!/bin/sh
# Made by sparkcluster VERSION for node spark-a, where it can be run by hand: sh FILE   (as nvidia)
# What was there before is kept in ~/.local/state/sparkcluster/setup. It can be run again at any time.
# sparkcluster setup INVENTORY --undo undoes it.
set -u
RUN_AS=nvidia
MACHINE=0000000000000000000000000000000000000000000000000000000000000000
OPERATOR=me@laptop
LABEL=io.sparkcluster.cluster
NETPLAN=/etc/netplan/40-cx7.yaml
MTU=9000
PENDING=/run/sparkcluster-setup
TOP=$HOME BELOW=.local/state/sparkcluster

(common.sh)

(ssh-key.sh)

# sparkcluster logs in by key
step_ssh_key() {
step=ssh-key
say 'your public key in ~/.ssh/authorized_keys'
act add_key /home/nvidia/.ssh/authorized_keys 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMine me@laptop' || return 1
say done
}

main() {
  begin
  attempt step_ssh_key
  end
}

main </dev/null
