# Set-up that the scripts share; sourced, not run. Each script works on a fresh machine with Python 3.11+ and Java 17+.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"
tools= # a virtual environment with pip and uv for $venv, which then needs none; see need_tools
TEST_EXTRAS=cli,cron,spark,connect,postgres,web
TEST_GROUPS=dev,examples,docs
QUICK_TESTS="not slow and not minutes and not spark and not long"
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

# find_release 3.12: prints the Python of this release, from the PATH, of pyenv, or in a folder of PYTHONS_DIR, which is by
# default the one of `uv python install`; fails if there is none. 3.14t is the free-threaded one.
find_release() {
  local python
  for python in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python \
    "${PYTHONS_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}"/*/bin/python"$1"; do
    if is_python "$python"; then
      printf '%s\n' "$python"
      return
    fi
  done
  return 1
}

WHEELS='
import runpy, sys
known = runpy.run_path(sys.argv[1])
own, lacking = known["own_python"](), known["LACKING"]
extras = sys.argv[2].split(",")
left_out = [extra + " (" + ", ".join(lacking[extra][own]) + ")" for extra in extras if own in lacking.get(extra, ())]
if left_out:
    print(f"Python {own} has no wheels for " + "; ".join(left_out) + "; left out", file=sys.stderr)
print(*(extra for extra in extras if own not in lacking.get(extra, ())), sep=",")'

# with_wheels PYTHON EXTRAS: prints the extras that have all wheels for that Python, and on standard error the others.
with_wheels() { "$1" -c "$WHEELS" "$root/pipeline/cli/wheels.py" "$2"; }

# Sets $tools. The pip of an older Python does not know a newer one, and some Pythons come without.
need_tools() {
  local python
  tools="$root/.venv-tools"
  [ ! -e "$tools/.installed" ] || return 0
  python=$(find_python) || exit 1
  rm -rf "$tools" # of a set-up that was cut short
  "$python" -m venv "$tools" &&
    "$tools/bin/pip" install --quiet --disable-pip-version-check --upgrade 'pip>=25' 'uv>=0.9' ||
    die "cannot install pip and uv into $tools; see pip's message above"
  touch "$tools/.installed"
}

# make_venv PYTHON: makes $venv, unless it is there.
make_venv() {
  [ -x "$venv/bin/python" ] || "$1" -m venv ${tools:+--without-pip} "$venv" ||
    die "cannot make a virtual environment in $venv"
}

require_java() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" version
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
  [ -n "$version" ] ||
    die "Java 17 or newer is needed for Spark and none was found; install it (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
  [ "$version" -ge 17 ] ||
    die "Java 17 or newer is needed for Spark, and $java is Java $version; install a newer one (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
}

# use_memory: pytest keeps the tests' files in memory, if /dev/shm has room and allows programs to run. The files are small, but
# tests sync them thousands of times.
use_memory() {
  local program room
  [ -z "${PYTEST_DEBUG_TEMPROOT:-}" ] && program=$(mktemp /dev/shm/XXXXXX 2>/dev/null) || return 0
  room=$(df -Pk /dev/shm | awk 'END { print $4 }')
  if [ "$room" -gt 2000000 ] && cp /bin/true "$program" && chmod +x "$program" && "$program" 2>/dev/null; then
    export PYTEST_DEBUG_TEMPROOT=/dev/shm
  fi
  rm -f "$program"
}

# name_spark_classes: names in TESTS_SPARK_CLASSES the archive of Spark's classes for this Java and this PySpark.
name_spark_classes() {
  local version
  version=$({
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version
    echo "$venv"/lib/python*/site-packages/pyspark-*
  } 2>&1 | cksum | cut -d ' ' -f 1)
  export TESTS_SPARK_CLASSES="$venv/spark-classes-$version.jsa"
}

# group_requirements GROUPS: prints the requirements of these dependency groups, e.g. "dev,examples", a line each. pip has read
# the groups itself only since 25.1.
group_requirements() {
  "${tools:-$venv}/bin/python" - "$root/pyproject.toml" "$1" <<'END' || die "cannot read the dependency groups $1 in pyproject.toml"
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    groups = tomllib.load(file)["dependency-groups"]
for group in filter(None, sys.argv[2].split(",")):
    print(*groups[group], sep="\n")
END
}

# set_up EXTRAS [GROUPS [REQUIREMENT]]: a virtual environment in $venv with the project (editable), its extras, e.g.
# "cli,spark", and its dependency groups, e.g. "dev,examples". REQUIREMENT narrows a dependency, e.g. "pyspark==4.0.*". An
# environment that has more is left as it is.
set_up() {
  local extras=$1 groups=${2:-} stamp="$venv/.installed" python requirements name wanted pyproject known installed missing=
  local pip=("$venv/bin/pip")
  wanted="${extras//,/ } ${groups:+groups:${groups//,/ groups:}}"
  pyproject=$(cksum <"$root/pyproject.toml")${3:+ $3}
  { read -r known && read -r installed; } 2>/dev/null <"$stamp" || known=
  [ "$known" = "$pyproject" ] || installed=
  for name in $wanted; do
    [[ " $installed " = *" $name "* ]] || missing=$name
  done
  [ -n "$missing" ] || [ ! -x "$venv/bin/python" ] || return 0
  python=$(find_python) || exit 1
  echo "Setting up $venv with [$extras]${3:+ and $3}; this takes a minute or two the first time." >&2
  make_venv "$python"
  [ -z "$tools" ] || pip=("$tools/bin/pip" --python "$venv/bin/python")
  requirements=$(mktemp) # a file, because `pip --python` starts another pip, which inherits no descriptor
  group_requirements "$groups" >"$requirements" || exit 1
  "${pip[@]}" install --quiet --disable-pip-version-check --editable "$root[$extras]" ${3:+"$3"} \
    --requirement "$requirements" ||
    die "cannot install the project's packages; see pip's message above"
  rm -f "$requirements"
  printf '%s\n' "$pyproject" "$installed $wanted" >"$stamp"
}
