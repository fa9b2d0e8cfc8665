# One session at a time has the lock on a file, which says whose it is. The kernel frees it when the shell that took it
# ends, however it ends. The file is never removed: the lock belongs to the file, not to its name.
mark=$1; root=$2

# Takes the lock for as long as this shell lives. Where another has it, `holder` is the name of its session and
# `process` its shell.
take() {
  exec 3<>"$root/lock" || exit 1
  # The lock belongs to the open file: as standard input, every shell passes it on.
  why=$(flock -n 0 <&3 2>&1) && return
  # Of a lock that another has, nothing is said.
  [ -z "$why" ] || { printf '\n%s unlockable %s\n' "$mark" "$why"; exit 0; }
  read -r holder process <"$root/lock" || holder="another session"
  return 1
}
