# Sends a file or folder as an archive. What is said about it is looked for in English.
LC_ALL=C; export LC_ALL
[ -e "$1" ] || { echo "$1: No such file or directory" >&2; exit 1; }
cd "${1%/*}" && tar -cf - "./${1##*/}"
