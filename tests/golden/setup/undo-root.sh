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

(undo.sh)

(docker-group.sh)

(nvidia-runtime.sh)

(sysctl.sh)

(hf-cache.sh)

(perftest.sh)

(clock.sh)

(headless.sh)

(hold.sh)

(netplan.sh)

# Every rank is a container that this user starts without sudo (Docker, Linux post-installation steps)
step_docker_group() {
step=docker-group
say 'undo: the login in the group docker'
undo_step
}

# Containers get the GPU; Docker is restarted (NVIDIA Container Toolkit, installation guide)
step_nvidia_runtime() {
step=nvidia-runtime
say 'undo: NVIDIA'"'"'s runtime in Docker'
undo_step
}

# Memory of the GPU is system memory: swap late, and write dirty pages early (a published guide to DGX Spark: System tuning)
step_sysctl() {
step=sysctl
say 'undo: vm.swappiness=1, vm.dirty_bytes=268435456'
undo_step
}

# RDMA pins its buffers, else `ibv_reg_mr failed: Cannot allocate memory` (NVIDIA/nccl-tests#206)
step_limits() {
step=limits
say 'undo: locked memory without a limit'
undo_step
}

# Containers leave root's files in it, which downloads and copies cannot replace
step_hf_cache() {
step=hf-cache
say 'undo: the Hugging Face cache belongs to the login'
undo_step
}

# ib_write_bw measures RDMA in preflight --deep (linux-rdma/perftest)
step_perftest() {
step=perftest
say 'undo: the package perftest'
undo_step
}

# Log lines of several nodes are ordered by time (timedatectl(1))
step_clock() {
step=clock
say 'undo: a synchronized clock'
undo_step
}

# 2 to 3 GB more memory are free (a published guide to DGX Spark: Disable GUI for headless servers)
step_headless() {
step=headless
say 'undo: no desktop after the next boot'
undo_step
}

# Unattended upgrades would make the nodes differ (apt-mark(8))
step_hold() {
step=hold
say 'undo: kernel and driver stay at their version'
undo_step
}

# RDMA and NCCL use all twins of a cable by their addresses (NVIDIA DGX Spark, connect two Sparks)
step_netplan() {
step=netplan
say 'undo: an address for each twin in a subnet of its own, with MTU 9000, in /etc/netplan/40-cx7.yaml'
act undo_netplan
}

main() {
  begin
  attempt step_docker_group
  attempt step_nvidia_runtime
  attempt step_sysctl
  attempt step_limits
  attempt step_hf_cache
  attempt step_perftest
  attempt step_clock
  attempt step_headless
  attempt step_hold
  attempt step_netplan
  end
}

main </dev/null
