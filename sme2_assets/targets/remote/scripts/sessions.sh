# The sessions of one machine, below a root that several machines may share. A machine sees its own processes alone,
# so each has a folder. In it every session has a folder, and links say whose turn it is: 17 -> name. The highest
# number counts, and its turn is over when its session is dead. Then anyone may make the next number: `ln -s` makes a
# name or fails, so one succeeds. Nobody removes the highest, so whoever comes late finds a higher number than his own.
# It does not matter where in between a process dies.
unset TMOUT
LC_ALL=C; export LC_ALL
root=$2
machine=$(installation | sha256sum | cut -c1-16)
here=$root/sessions/$machine

# Why the root is not to be used, if it is not: who can write there decides what is removed, run and killed.
refusal() {
  me=$(id -u)
  for folder in "$root" "$root/store" "$root/programs" "$root/sessions" "$here"; do
    [ -d "$folder" ] || continue
    # A link may be another's, and so may the folder that it leads to.
    [ "$(find "$folder" "$folder/." -maxdepth 0 -user "$me" | wc -l)" -eq 2 ] || { echo "foreign $folder"; return; }
    [ -n "$(find "$folder/." -maxdepth 0 ! -perm -020 ! -perm -002)" ] || { echo "open $folder"; return; }
  done
  latest
  [ -z "$turn" ] || named "$holder" || echo "strange $here/$turn"
}

# Whether a text is the name of a session as we make them: computer, process, twelve random digits.
named() {
  digits=${1##*-}
  case $1 in *[!A-Za-z0-9-]*|-*) return 1 ;; *-[0-9]*-*) ;; *) return 1 ;; esac
  case $digits in *[!0-9a-f]*) return 1 ;; esac
  [ ${#digits} = 12 ]
}

# The highest turn and whose it is; both are empty if there was none yet.
latest() {
  turn=
  for link in "$here"/[1-9]*; do
    number=${link##*/}
    case $number in *[!0-9]*|??????????*) continue ;; esac
    [ "$number" -le "${turn:-0}" ] || turn=$number
  done
  holder=$(readlink "$here/$turn" 2>/dev/null)
}

# A session lives as long as the process that holds it, one of whose words is the session's name. They end in NUL
# characters, where grep stops reading unless -z tells it otherwise.
alive() {
  named "$1" && pid=$(cat "$here/$1/holder" 2>/dev/null) || return 1
  case $pid in ''|*[!0-9]*) return 1 ;; esac
  grep -qzxF "$1" "/proc/$pid/cmdline" 2>/dev/null
}

# Ends a session: the processes that have its name as a word, or as a folder in one, each with its group; its folder.
end() {
  named "$1" || return 0
  for file in $(grep -lzE "(^|/)$1(/|\$)" /proc/[0-9]*/cmdline 2>/dev/null); do
    pid=${file#/proc/}; pid=${pid%/cmdline}
    group=$(group_of "$pid") || continue
    if [ "$group" = "$(group_of $$)" ]; then kill -9 "$pid"; else kill -9 "-$group"; fi 2>/dev/null
  done
  rm -rf "$here/$1"
}
