# shellcheck shell=bash
# Sourced by scripts/quickstart and scripts/test: finds a Python, makes an environment, installs into it.

CONSTRAINTS=scripts/constraints.txt

fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

bad_usage() {
  printf '%s: %s; see scripts/%s --help\n' "${0##*/}" "$*" "${0##*/}" >&2
  exit 2
}

is_usable_python() {
  "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' > /dev/null 2>&1
}

# Sets BASE_PYTHON: $PYTHON if the user named one, else the first usable one on PATH.
find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    is_usable_python "$PYTHON" ||
      fail "PYTHON=$PYTHON is no Python 3.10 to 3.14 ($("$PYTHON" --version 2>&1 || true)); name another one"
    BASE_PYTHON=$PYTHON
    return
  fi
  for candidate in python3 python python3.14 python3.13 python3.12 python3.11 python3.10; do
    if is_usable_python "$candidate"; then
      BASE_PYTHON=$candidate
      return
    fi
  done
  fail "needs Python 3.10 to 3.14, but python3 is $(python3 --version 2>&1 || echo missing);" \
    "install one, or name it: PYTHON=/path/to/python3.12 ${0##*/}"
}

# make_environment FOLDER: sets VENV_PYTHON to the Python of that environment, made if it is not there.
make_environment() {
  VENV_PYTHON=$1/bin/python
  if ! is_usable_python "$VENV_PYTHON"; then
    find_python
    printf 'making %s with %s\n' "$1" "$("$BASE_PYTHON" --version)"
    "$BASE_PYTHON" -m venv --clear "$1" ||
      fail "cannot make $1; install your system's venv package (python3-venv), or use --no-venv"
  fi
  VENV_PYTHON=$(cd "$1" && pwd)/bin/python
}

# use_current_environment: sets VENV_PYTHON to the Python on PATH.
use_current_environment() {
  find_python
  VENV_PYTHON=$(command -v "$BASE_PYTHON")
}

# put_on_path: programs of the environment (hangcheck, torchrun, pytest) come first.
put_on_path() {
  PATH=$("$VENV_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))'):$PATH
  export PATH
}

# pip_install ARGUMENTS: the exact versions of the constraints file.
pip_install() {
  "$VENV_PYTHON" -m pip install --quiet --disable-pip-version-check -c "$CONSTRAINTS" "$@" ||
    fail "pip could not install $* (its reason stands above). Without network, name a folder of wheels:" \
      "PIP_NO_INDEX=1 PIP_FIND_LINKS=/path/to/wheels; if the network is slow, run this again"
}

# install_torch: first and alone, so that the user can say which build.
install_torch() {
  local arguments
  read -r -a arguments <<< "${TORCH_PIP_ARGS:-}"
  if [ "$(uname -s)" = Linux ] && [ -z "${TORCH_PIP_ARGS:-}" ] && ! command -v nvidia-smi > /dev/null; then
    printf '%s\n' "installing torch; if pip's build brings CUDA (several GB) and you want the CPU build, stop" \
      "this and set TORCH_PIP_ARGS='--index-url <the CPU index that pytorch.org names>'"
  fi
  pip_install ${arguments[@]+"${arguments[@]}"} torch
}

# install_once STAMP INPUTS... -- REQUIREMENTS...: install unless the inputs are what they were.
install_once() {
  local stamp=$1 inputs=() key
  shift
  while [ "$1" != -- ]; do
    inputs+=("$1")
    shift
  done
  shift
  key=$(find "${inputs[@]}" -type f -not -name '*.pyc' -exec cksum {} + | LC_ALL=C sort | cksum)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then
    return
  fi
  printf 'installing %s (the first time takes minutes)\n' "$*"
  install_torch
  pip_install "$@"
  printf '%s\n' "$key" > "$stamp"
}
