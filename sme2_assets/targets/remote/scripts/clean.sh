# Processes of another machine that shares the root cannot be seen: what changed within a day counts as in use.
used() {
  if [ "$1" = "$here" ]; then
    [ "$2" = "$holder" ] && alive "$2"
  else
    [ -n "$(find "$1/$2" -mtime -1 2>/dev/null | head -n 1)" ]
  fi
}
why=$(refusal)
[ -z "$why" ] || { section refused; echo "$why"; section end; exit 0; }
latest
for folder in "$root"/sessions/*/*-*; do
  name=${folder##*/}
  named "$name" && used "${folder%/*}" "$name" || continue
  section held; echo "$name"; section end; exit 0
done
section freed; du -sk "$root" 2>/dev/null | cut -f1
# What lies beside these is not ours; `current` was made by earlier versions.
rm -rf "$root/sessions" "$root/store" "$root/programs" "$root/current" || exit 1
section end
