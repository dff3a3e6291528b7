#!/bin/sh
# Made by sparkcluster VERSION for node spark-a, where it can be run by hand: sh FILE   (as nvidia)
# What it undoes, unless that was changed since:
#   ssh-key: line /home/nvidia/.ssh/authorized_keys
#   ssh-key: directory /home/nvidia/.ssh
set -u
RUN_AS=nvidia
MACHINE=0000000000000000000000000000000000000000000000000000000000000000
OPERATOR=me@laptop
TOP=$HOME dir=$HOME/.local/state/sparkcluster/setup

(common.sh)

(undo.sh)

(file.sh)

(undo-file.sh)

(undo-key.sh)

# sparkcluster logs in by key
step_ssh_key() {
  step=ssh-key
  say 'undo: your public key in ~/.ssh/authorized_keys'
  left=''
  take undo undo_line 2 line /home/nvidia/.ssh/authorized_keys absent aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 'absent aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' || return 1
  take undo undo_directory 1 directory /home/nvidia/.ssh absent made || return 1
  undone
}

main() {
  begin
  attempt step_ssh_key
  end
}

main </dev/null
