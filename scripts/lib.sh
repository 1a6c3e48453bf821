# Set-up that the scripts share; sourced, not run. Each script works on a fresh machine with Python 3.11+ and Java 17+.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"

die() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit 1
}

# Prints the first Python of 3.11 or newer.
find_python() {
  local python
  for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3; do
    if command -v "$python" >/dev/null 2>&1 &&
      "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      printf '%s\n' "$python"
      return
    fi
  done
  die "Python 3.11 or newer with venv is needed and none was found; install it (Debian: apt-get install python3 python3-venv), or set PYTHON"
}

require_java() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java" version
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
  [ -n "$version" ] ||
    die "Java 17 or newer is needed for Spark and none was found; install it (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
  [ "$version" -ge 17 ] ||
    die "Java 17 or newer is needed for Spark, and $java is Java $version; install a newer one (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
}

# set_up EXTRAS: a virtual environment in .venv with the project (editable) and its extras, e.g. "cli,spark".
set_up() {
  local extras=$1 python stamp wanted
  stamp="$venv/.extras-$extras"
  wanted=$(cksum <"$root/pyproject.toml")
  if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  python=$(find_python) || exit 1
  echo "Setting up $venv with [$extras]; this takes a minute or two the first time." >&2
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || die "cannot make a virtual environment in $venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --editable "$root[$extras]" ||
    die "cannot install the project's packages; see pip's message above"
  printf '%s' "$wanted" >"$stamp"
}
