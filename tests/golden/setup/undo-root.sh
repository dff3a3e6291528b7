#!/bin/sh
# Made by sparkcluster VERSION for node spark-a, where it can be run by hand: sudo sh FILE
# What it undoes, unless that was changed since:
#   docker-group: group docker:nvidia
#   nvidia-runtime: file /etc/docker/daemon.json
#   sysctl: sysctl vm.dirty_bytes
#   sysctl: sysctl vm.swappiness
#   sysctl: file /etc/sysctl.d/90-sparkcluster.conf
#   limits: file /etc/security/limits.d/90-sparkcluster.conf
#   limits: file /etc/security/limits.d/90-sparkcluster.conf
#   hf-cache: owner /home/nvidia/.cache/huggingface
#   hosts: block /etc/hosts
#   perftest: package libibumad3
#   perftest: package perftest
#   clock: ntp clock
#   headless: target default.target
#   hold: hold nvidia-driver-580-open
#   netplan: netplan /etc/netplan/40-cx7.yaml
#   netplan: address enp1s0f1np1 192.168.177.11/24
#   netplan: netplan /etc/netplan/40-cx7.yaml
#   netplan: address enp1s0f1np1 192.168.177.11/24
#   netplan: link enp1s0f1np1
set -u
RUN_AS=root
MACHINE=0000000000000000000000000000000000000000000000000000000000000000
OPERATOR=me@laptop
LABEL=io.sparkcluster.cluster
BEGIN='# BEGIN sparkcluster: written by sparkcluster setup'
END='# END sparkcluster'
NETPLAN=/etc/netplan/40-cx7.yaml
PENDING=/run/sparkcluster
MTU=9000
CONFIRM=self
CONFIRM_S=60
TOP=/var/lib dir=/var/lib/sparkcluster/setup

(common.sh)

(undo.sh)

(group.sh)

(undo-group.sh)

(ranks.sh)

(file.sh)

(undo-file.sh)

(undo-runtime.sh)

(sysctl.sh)

(undo-sysctl.sh)

(owner.sh)

(undo-owner.sh)

(hosts.sh)

(undo-hosts.sh)

(package.sh)

(undo-package.sh)

(ntp.sh)

(undo-ntp.sh)

(target.sh)

(undo-target.sh)

(hold.sh)

(undo-hold.sh)

(netplan.sh)

(undo-netplan.sh)

# Every rank is a container that this user starts without sudo (Docker, Linux post-installation steps)
step_docker_group() {
  step=docker-group
  say 'undo: the login in the group docker'
  left=''
  take undo undo_group 1 group docker:nvidia absent member || return 1
  undone
}

# Containers get the GPU; Docker is restarted (NVIDIA Container Toolkit, installation guide)
step_nvidia_runtime() {
  step=nvidia-runtime
  say 'undo: NVIDIA'"'"'s runtime in Docker'
  left=''
  take undo undo_runtime 2 file /etc/docker/daemon.json aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb' || return 1
  undone
}

# Memory of the GPU is system memory: swap late, and write dirty pages early (a published guide to vLLM on DGX Spark: System tuning)
step_sysctl() {
  step=sysctl
  say 'undo: vm.swappiness=1, vm.dirty_bytes=268435456'
  left=''
  take undo undo_sysctl 5 sysctl vm.dirty_bytes vm.dirty_ratio=20 vm.dirty_bytes=268435456 'vm.dirty_ratio=20 vm.dirty_bytes=268435456' || return 1
  take undo undo_sysctl 4 sysctl vm.swappiness vm.swappiness=60 vm.swappiness=1 'vm.swappiness=60 vm.swappiness=1' || return 1
  take undo undo_file 3 file /etc/sysctl.d/90-sparkcluster.conf absent aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 'absent aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' || return 1
  undone
}

# RDMA pins its buffers, else `ibv_reg_mr failed: Cannot allocate memory` (NVIDIA/nccl-tests#206)
step_limits() {
  step=limits
  say 'undo: locked memory without a limit'
  left=''
  take undo undo_file 19 file /etc/security/limits.d/90-sparkcluster.conf aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 'absent aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb' || return 1
  take undo undo_file 6 file /etc/security/limits.d/90-sparkcluster.conf absent aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 'absent aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb' || return 1
  undone
}

# Containers leave root's files in it, which downloads and copies cannot replace
step_hf_cache() {
  step=hf-cache
  say 'undo: the Hugging Face cache belongs to the login'
  left=''
  take undo undo_owner 7 owner /home/nvidia/.cache/huggingface aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa nvidia || return 1
  undone
}

# NODE-rail1 is the node's first address on the QSFP ports; host names alone resolve as before
step_hosts() {
  step=hosts
  say 'undo: names of all rails in /etc/hosts'
  left=''
  take undo undo_block 8 block /etc/hosts aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb' || return 1
  undone
}

# ib_write_bw measures RDMA in preflight --deep (linux-rdma/perftest)
step_perftest() {
  step=perftest
  say 'undo: the package perftest'
  left=''
  take undo undo_package 10 package libibumad3 absent installed 'perftest libibumad3' || return 1
  take undo undo_package 9 package perftest absent installed 'perftest libibumad3' || return 1
  undone
}

# Log lines of several nodes are ordered by time (timedatectl(1))
step_clock() {
  step=clock
  say 'undo: a synchronized clock'
  left=''
  take undo undo_ntp 11 ntp clock no yes || return 1
  undone
}

# 2 to 3 GB more memory are free (a published guide to vLLM on DGX Spark: Disable GUI for headless servers)
step_headless() {
  step=headless
  say 'undo: no desktop after the next boot'
  left=''
  take undo undo_target 12 target default.target absent multi-user.target || return 1
  undone
}

# Unattended upgrades would make the nodes differ (apt-mark(8))
step_hold() {
  step=hold
  say 'undo: kernel and driver stay at their version'
  left=''
  take undo undo_hold 13 hold nvidia-driver-580-open free held || return 1
  undone
}

# RDMA and NCCL use all twins of a cable by their addresses (NVIDIA DGX Spark, connect two Sparks)
step_netplan() {
  step=netplan
  say 'undo: an address for each twin in a subnet of its own, with MTU 9000, in /etc/netplan/40-cx7.yaml'
  left=''
  take undo_netplan 18 17 16 15 14 <<'END' || return 1
18	netplan	/etc/netplan/40-cx7.yaml	aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa	bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
16	netplan	/etc/netplan/40-cx7.yaml	absent	aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
15	address	enp1s0f1np1 192.168.177.11/24	absent	present
14	link	enp1s0f1np1	mtu=1500 mode=0	mtu=9000
END
  undone
}

main() {
  begin
  attempt step_docker_group
  attempt step_nvidia_runtime
  attempt step_sysctl
  attempt step_limits
  attempt step_hf_cache
  attempt step_hosts
  attempt step_perftest
  attempt step_clock
  attempt step_headless
  attempt step_hold
  attempt step_netplan
  end
}

main </dev/null
