# Holds the device until standard input ends. Our lines begin with the session's name, after a line break: a login
# shell may have printed something without one.
name=$mark
say() { printf '\n%s %s\n' "$name" "$1"; }
unset TMOUT
LC_ALL=C; export LC_ALL
# adbd lets everybody write to what is made by its shell.
umask 022
mkdir -p "$root" || exit 1
until take; do
  # Fails when nobody listens any more.
  say "held by $holder" && sleep 1 || exit 1
done
echo "$name $$" >"$root/lock" || exit 1
# What a session has left that could not clean up: its processes have its folder in a word, each with its group.
for folder in "$root"/sessions/*; do
  [ -d "$folder" ] || continue
  for file in $(grep -lzE "/sessions/${folder##*/}(/|\$)" /proc/[0-9]*/cmdline 2>/dev/null); do
    pid=${file#/proc/}
    group=$(group_of "${pid%/cmdline}") && kill -9 "-$group" 2>/dev/null
  done
  rm -rf "$folder"
done
mkdir -p "$root/store" "$root/programs" "$root/sessions/$name/files" || exit 1
say ready
read -r line
rm -rf "$root/sessions/$name"
