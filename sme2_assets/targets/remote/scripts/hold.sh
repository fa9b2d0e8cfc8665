# Holds a session until standard input ends. The folder of a session that nobody holds is a leftover of one that could
# not clean up, for example because the device restarted. Our lines begin with the session's name, after a line break:
# a login shell may have printed something without one.
name=$1
say() { printf '\n%s %s\n' "$name" "$1"; }
leave() { rm -rf "$here/$name"; exit 1; }
# adbd lets everybody write to what is made by its shell.
umask 022
mkdir -p "$root" || exit 1
why=$(refusal)
[ -z "$why" ] || { say "refused $why"; exit 1; }
mkdir -p "$root/store" "$root/programs" "$here" && mkdir "$here/$name" || exit 1
echo $$ > "$here/$name/holder" && mkdir "$here/$name/files" || leave
# From inside: when all is cleaned meanwhile, no name can be made in a folder that is gone.
cd "$here" || leave
while latest; [ "$holder" != "$name" ]; do
  if alive "$holder"; then
    # Fails when nobody listens any more.
    say "held by $holder" || leave
    sleep 1
    continue
  fi
  before=$holder; next=$((${turn:-0} + 1))
  said=$(ln -s "$name" $next 2>&1)
  latest
  [ "${turn:-0}" -ge $next ] || { echo "$said"; leave; }
  [ "$turn" = $next ] || [ "$(readlink $next)" != "$name" ] || rm -f $next
done
for link in [1-9]*; do
  case $link in *[!0-9]*) ;; *) [ "$link" -ge "$turn" ] || rm -f "$link" ;; esac
done
[ -z "$before" ] || end "$before"
for folder in *-*; do
  [ "$folder" = "$name" ] || alive "$folder" || [ -z "$(find "$folder" -maxdepth 0 -mmin +1)" ] || end "$folder"
done
say "ready $machine"
read -r line
rm -rf "$here/$name"
