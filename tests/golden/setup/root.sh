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
say 'the login in the group docker'
act change group docker:nvidia member || return 1
say done
}

# Containers get the GPU; Docker is restarted (NVIDIA Container Toolkit, installation guide)
step_nvidia_runtime() {
step=nvidia-runtime
say 'NVIDIA'"'"'s runtime in Docker'
act configure_runtime || return 1
say done
}

# Memory of the GPU is system memory: swap late, and write dirty pages early (a published guide to DGX Spark: System tuning)
step_sysctl() {
step=sysctl
say 'vm.swappiness=1, vm.dirty_bytes=268435456'
act write_file /etc/sysctl.d/90-sparkcluster.conf <<'END' || return 1
vm.swappiness = 1
vm.dirty_bytes = 268435456
END
act change sysctl vm.swappiness vm.swappiness=1 || return 1
act change sysctl vm.dirty_bytes vm.dirty_bytes=268435456 || return 1
say done
}

# RDMA pins its buffers, else `ibv_reg_mr failed: Cannot allocate memory` (NVIDIA/nccl-tests#206)
step_limits() {
step=limits
say 'locked memory without a limit'
act write_file /etc/security/limits.d/90-sparkcluster.conf <<'END' || return 1
nvidia - memlock unlimited
END
say done
}

# Containers leave root's files in it, which downloads and copies cannot replace
step_hf_cache() {
step=hf-cache
say 'the Hugging Face cache belongs to the login'
act own_tree /home/nvidia/.cache/huggingface nvidia || return 1
say done
}

# ib_write_bw measures RDMA in preflight --deep (linux-rdma/perftest)
step_perftest() {
step=perftest
say 'the package perftest'
act install_package perftest || return 1
say done
}

# Log lines of several nodes are ordered by time (timedatectl(1))
step_clock() {
step=clock
say 'a synchronized clock'
act change ntp clock yes || return 1
say done
}

# 2 to 3 GB more memory are free (a published guide to DGX Spark: Disable GUI for headless servers)
step_headless() {
step=headless
say 'no desktop after the next boot'
act change target default.target multi-user.target || return 1
say done
}

# Unattended upgrades would make the nodes differ (apt-mark(8))
step_hold() {
step=hold
say 'kernel and driver stay at their version'
act change hold linux-image-6.14.0-1015-nvidia hold || return 1
act change hold nvidia-driver-580-open hold || return 1
say done
}

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
