# Sourced by scripts/demo and scripts/test: finds Python and creates .venv.

trap 'exit 130' INT

say() { printf '%s\n' "$*" >&2; }

# Prints an error and the command that fixes it, and exits.
give_up() {
  say "error: $1"
  say "hint: $2"
  exit 2
}

# Prints the first Python >= 3.11.
find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] || continue
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

check_system() {
  [ "$(uname -s)" = Linux ] || give_up "this needs Linux, and this is $(uname -s)" "run it on a Spark or any Linux machine"
  case "$(uname -m)" in
    x86_64 | aarch64) ;;
    *) give_up "this needs x86_64 or aarch64, and this is $(uname -m)" "run it on a Spark" ;;
  esac
  command -v flock >/dev/null 2>&1 || give_up "flock is missing" "sudo apt-get install util-linux"
  base_python=$(find_python) || give_up "Python 3.11 or newer is missing" "sudo apt-get install python3 python3-venv, or set PYTHON=/path/to/python3.12"
  "$base_python" -c 'import venv, ensurepip' 2>/dev/null ||
    give_up "this Python cannot create virtual environments" "sudo apt-get install python3-venv"
}

# alone COMMAND...: runs it with a .venv that has uv, one process at a time in this checkout. The lock is released when the last
# process that has its descriptor exits.
alone() {
  (
    trap 'exit 130' INT
    if ! flock --nonblock 9; then
      say "waiting for another installation in $(pwd)"
      flock 9
    fi
    has_uv || new_venv
    "$@"
  ) 9>.venv.lock
}

# changing COMMAND...: marks .venv as unfinished while COMMAND changes it. An interrupted installation can leave part of a package, which
# pip and uv consider complete. An unfinished .venv is created again.
changing() {
  local code=0
  touch .venv/unfinished
  "$@" || code=$?
  rm -f .venv/unfinished
  return "$code"
}

make_venv() { has_uv || alone true; }

has_uv() { [ ! -e .venv/unfinished ] && .venv/bin/python -c 'import pip, uv' 2>/dev/null; }

new_venv() {
  local problem
  if [ -e .venv/unfinished ] || ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    say "creating .venv with $base_python"
    rm -rf .venv/bin .venv # its Python first: without it, a .venv that is half removed is not used
    problem=$(mkdir .venv 2>&1 && changing "$base_python" -m venv .venv 2>&1) ||
      give_up "creating .venv failed: ${problem##*$'\n'}" "check that the disk is writable and not full, then run this again"
  fi
  changing .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r scripts/lib/uv.txt ||
    give_up "pip could not install uv" "check the network, then run this again"
}

# install_project [GROUP]: sparkcluster, editable, and a dependency group, with the versions and hashes of
# constraints.txt; does nothing if they are installed.
install_project() { is_installed "$@" || alone add_project "$@"; }

pinned=scripts/lib/constraints.txt

is_installed() {
  wanted=$(cat pyproject.toml "$pinned" | sha256sum | cut -c1-16)-${1:-base}
  stamp=.venv/sparkcluster-${1:-base}
  [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]
}

add_project() {
  local group=${1:-}
  is_installed "$@" && return 0 # by the process that had the lock before
  say "installing sparkcluster${group:+ with its dependency group $group}"
  changing .venv/bin/uv pip install --quiet --python .venv/bin/python --constraint "$pinned" --build-constraint "$pinned" \
    ${group:+--group "$group"} --editable . ||
    give_up "installing sparkcluster failed" "check the network, then run this again"
  printf '%s' "$wanted" >"$stamp"
}
