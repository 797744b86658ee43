# Installs Debian and Ubuntu packages that are missing. Sourced by setup and setup-peers.

say() { echo "setup: $*" >&2; }

# have WHAT: a command on the PATH, or a header where the compiler looks.
have() {
  case $1 in
    *.h | *.hpp) [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ] || compgen -G "/usr/include/*-linux-gnu/$1" >/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# missing_packages PACKAGE=WHAT...: prints the packages whose WHAT is not there.
missing_packages() {
  local entry
  for entry in "$@"; do
    have "${entry#*=}" || echo "${entry%%=*}"
  done
}

# install_packages PACKAGE...: returns 1, having said what to do, when it cannot.
install_packages() {
  [ $# -gt 0 ] || return 0
  local as_root=() by_hand="as root, run: apt-get update && apt-get install -y $*"
  if ! command -v apt-get >/dev/null; then
    say "this system has no apt-get. Install what these Debian packages hold: $*"
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { say "no rights to install packages; $by_hand"; return 1; }
    as_root=(sudo)
  fi
  say "installing packages: $*"
  "${as_root[@]}" apt-get update -q >&2 || say "apt-get update failed; going on with the lists at hand"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "$@" >&2 || { say "that failed; $by_hand"; return 1; }
}

# install_optional PACKAGE...: those the archive knows; failing is no error.
install_optional() {
  local package known=()
  command -v apt-cache >/dev/null || { say "not installed (optional): $*"; return 0; }
  for package in "$@"; do
    if apt-cache show "$package" >/dev/null 2>&1; then known+=("$package"); fi
  done
  [ ${#known[@]} -eq 0 ] || install_packages "${known[@]}" || say "going on without (optional): ${known[*]}"
}

# Prints a python3 of at least 3.10 that can make virtual environments; returns 1 when there is none.
find_python() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
      echo "$python"
      return 0
    fi
  done
  return 1
}

# make_venv FOLDER: makes it, or makes it anew when its pip does not run.
make_venv() {
  "$1/bin/python" -m pip --version >/dev/null 2>&1 && return 0
  say "making a Python environment in $1"
  "$(find_python)" -m venv --clear "$1"
}
