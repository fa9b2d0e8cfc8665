# A section begins with a mark that nothing on the device can know. The files of a section `files` have one line
# each: `grep` gives all of them, with their names, by one process.
mark=$1
section() { printf '\n%s %s\n' "$mark" "$1"; }
ask() { command -v "$1" >/dev/null 2>&1 && "$@" </dev/null 2>/dev/null; }
