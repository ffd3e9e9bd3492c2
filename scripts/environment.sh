# Sourced by the commands of this folder, in the root of the checkout. Makes virtual environments
# on a machine that has only Python and pip, and leaves them alone while nothing has changed.

# Tests start hundreds of processes: let them read the package compiled.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*" >&2; }

# True where "$1" starts a Python that the package supports.
is_supported() {
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null
}

# The first interpreter that will do: $PYTHON where it is set, else the usual names.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10 python}; do
        if is_supported "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    say "graphpatch needs Python 3.10 to 3.13; ${PYTHON:-python3} is not. Name one: PYTHON=python3.12 $0"
    return 1
}

# make_venv PYTHON FOLDER: an empty environment with pip in it.
make_venv() {
    say "making $2 with $("$1" -V 2>&1)"
    "$1" -m venv --clear "$2" >/dev/null 2>&1 && return
    # Debian and Ubuntu split ensurepip off Python; their pip can install itself instead.
    "$1" -m venv --clear --without-pip "$2"
    "$1" -m pip install --quiet --target "$("$2/bin/python" -c \
        'import sysconfig; print(sysconfig.get_path("purelib"))')" pip
}

# install_graphpatch EXTRAS: an editable install; sets $venv. PYTHON=python3.12 uses .venv-3.12.
install_graphpatch() {
    local python stamp wanted
    python=$(find_python) || return
    venv=.venv
    if [ -n "${PYTHON:-}" ]; then
        venv=.venv-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    fi
    stamp=$venv/installed-$1
    wanted="$PWD $(cat setup.cfg pyproject.toml | cksum)"
    # What has more extras after these will do too.
    if grep -qsxF "$wanted" "$stamp"* && is_supported "$venv/bin/python"; then
        return
    fi
    is_supported "$venv/bin/python" || make_venv "$python" "$venv" || return
    say "installing graphpatch[$1] into $venv (once; TensorFlow is large)"
    # A caller may ask whether this worked, and then bash does not stop at an error by itself.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$1]" || return
    printf '%s\n' "$wanted" >"$stamp"
}

# Where a Python 3.7 lies, the last that TensorFlow 1.15 has wheels for.
find_python37() {
    local candidate
    for candidate in python3.7 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.7.*/bin/python3.7; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 7))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# Sets GRAPHPATCH_TF1_PYTHON for the tests that ask TensorFlow 1.15 too, where that can be had.
find_tensorflow1() {
    local python venv1=.venv-tf1 packages='tensorflow==1.15.5 protobuf<3.21'
    if [ -n "${GRAPHPATCH_TF1_PYTHON:-}" ]; then
        return
    fi
    if [ "$(cat "$venv1/installed" 2>/dev/null)" != "$PWD $packages" ]; then
        if ! python=$(find_python37); then
            say "no python3.7 here: the tests under TensorFlow 1.15 are skipped"
            return
        fi
        make_venv "$python" "$venv1"
        say "installing TensorFlow 1.15 into $venv1 (once)"
        # shellcheck disable=SC2086  # one word a package
        if ! "$venv1/bin/python" -m pip install --quiet --disable-pip-version-check $packages; then
            say "TensorFlow 1.15 does not install here: the tests under it are skipped"
            return
        fi
        printf '%s\n' "$PWD $packages" >"$venv1/installed"
    fi
    export GRAPHPATCH_TF1_PYTHON="$PWD/$venv1/bin/python"
}

# Debian's Chromium, for the tests that open pages in a browser; they are skipped where it is not.
find_chromium() {
    if [ -n "${CHROMIUM:-}" ] || command -v chromium chromium-browser google-chrome >/dev/null; then
        return
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing chromium (once)"
        apt-get install -y -qq chromium >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 || true
    fi
    command -v chromium >/dev/null ||
        say "no chromium here (apt-get install chromium): the tests in a browser are skipped"
}
