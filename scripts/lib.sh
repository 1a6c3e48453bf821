# Set-up that the scripts share; sourced, not run. Each script works on a fresh machine with Python 3.11+ and Java 17+.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"
TEST_EXTRAS=cli,spark,connect,postgres,web,examples,dev
QUICK_TESTS="not slow and not spark and not long"
# One worker more than processors: many tests wait for processes that they start.
PYTEST_WORKERS=(--numprocesses "$(($(getconf _NPROCESSORS_ONLN) + 1))" --maxprocesses 8)
# Compiled tests are kept for the next run, whatever the environment says: to rewrite their assertions takes 10 seconds.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX="$root/.venv-pycache"

die() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit 1
}

# is_python COMMAND: runs, is 3.11 or newer, and can make a virtual environment.
is_python() {
  command -v "$1" >/dev/null 2>&1 &&
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Prints the first Python of 3.11 or newer.
find_python() {
  local python
  for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3; do
    if is_python "$python"; then
      printf '%s\n' "$python"
      return
    fi
  done
  die "Python 3.11 or newer with venv is needed and none was found; install it (Debian: apt-get install python3 python3-venv), or set PYTHON"
}

# find_release 3.12: prints the Python of this release, from the PATH or of pyenv; fails if there is none.
find_release() {
  local python
  for python in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if is_python "$python"; then
      printf '%s\n' "$python"
      return
    fi
  done
  return 1
}

require_java() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" version
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
  [ -n "$version" ] ||
    die "Java 17 or newer is needed for Spark and none was found; install it (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
  [ "$version" -ge 17 ] ||
    die "Java 17 or newer is needed for Spark, and $java is Java $version; install a newer one (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
}

# set_up EXTRAS [REQUIREMENT]: a virtual environment in $venv with the project (editable) and its extras, e.g.
# "cli,spark". REQUIREMENT narrows a dependency, e.g. "pyspark==4.0.*".
set_up() {
  local extras=$1 python stamp wanted
  stamp="$venv/.extras-$extras"
  wanted=$(cksum <"$root/pyproject.toml")${2:+ $2}
  if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  python=$(find_python) || exit 1
  echo "Setting up $venv with [$extras]${2:+ and $2}; this takes a minute or two the first time." >&2
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || die "cannot make a virtual environment in $venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --editable "$root[$extras]" ${2:+"$2"} ||
    die "cannot install the project's packages; see pip's message above"
  printf '%s' "$wanted" >"$stamp"
}

# add_group GROUP: adds the packages of a dependency group to the environment that set_up has made. pip itself reads groups
# only from 25.1 on.
add_group() {
  local stamp="$venv/.group-$1" requirements wanted
  wanted=$(cksum <"$root/pyproject.toml")
  if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  mapfile -t requirements < <("$venv/bin/python" -c 'import sys, tomllib
print(*tomllib.load(sys.stdin.buffer)["dependency-groups"][sys.argv[1]], sep="\n")' "$1" <"$root/pyproject.toml")
  echo "Adding the packages of the group $1 to $venv." >&2
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${requirements[@]}" ||
    die "cannot install the packages of the group $1; see pip's message above"
  printf '%s' "$wanted" >"$stamp"
}

# set_up_compiled EXTRAS: a virtual environment in $venv with a wheel that mypyc has compiled, and its extras; and in
# $venv/tree a copy of the working tree with the wheel's modules beside their sources, which Python then does not use.
set_up_compiled() {
  local extras=$1 wanted tree="$venv/tree" stamp="$venv/.compiled" installed="$venv/.compiled-$1" python
  wanted=$(cd "$root" && find dispatcher statemachines pipeline scripts/wheel setup.py pyproject.toml -type f \
    ! -name '*.pyc' -print0 | sort -z | xargs -0 cksum | cksum)
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    python=$(find_python) || exit 1
    echo "Compiling the packages into $venv; this takes a minute or two." >&2
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || die "cannot make a virtual environment in $venv"
    rm -rf "$venv/wheel"
    copy_tree "$tree"
    DISPATCHER_COMPILE=1 "$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$venv/wheel" \
      "$tree" || die "cannot compile the packages; see pip's message above"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$venv/wheel/"*.whl ||
      die "cannot install the compiled wheel; see pip's message above"
    printf '%s' "$wanted" >"$stamp"
  fi
  if [ "$(cat "$installed" 2>/dev/null)" != "$wanted" ]; then
    "$venv/bin/pip" install --quiet --disable-pip-version-check "$(echo "$venv/wheel/"*.whl)[$extras]" ||
      die "cannot install the packages of [$extras]; see pip's message above"
    printf '%s' "$wanted" >"$installed"
  fi
  copy_tree "$tree"
  "$venv/bin/python" -m zipfile -e "$venv/wheel/"*.whl "$tree"
  rm -rf "$tree/"*.dist-info
}

# copy_tree FOLDER: the working tree without what runs and builds leave in it.
copy_tree() {
  rm -rf "$1"
  mkdir -p "$1"
  tar -C "$root" --exclude='./.venv*' --exclude=./.git --exclude=./build --exclude=./dist --exclude=./runs \
    --exclude='./.*_cache' --exclude=./.hypothesis --exclude=__pycache__ --exclude='*.egg-info' -cf - . | tar -C "$1" -xf -
}
