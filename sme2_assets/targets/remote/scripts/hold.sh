# Holds a session until standard input ends. `ln -s` makes a name or fails, so only one process succeeds. The folder
# of a session that nobody holds is a leftover of one that could not clean up, for example because the device restarted.
root=$1; name=$2
mkdir -p "$root/sessions" "$root/store" "$root/programs" && mkdir "$root/sessions/$name" || exit 1
echo $$ > "$root/sessions/$name/holder" && mkdir "$root/sessions/$name/files" || exit 1
until ln -s "$name" "$root/current" 2>/dev/null; do
  holder=$(readlink "$root/current") || exit 1
  if alive "$holder"; then
    # Fails when nobody listens any more.
    echo "held by $holder" || { rm -rf "$root/sessions/$name"; exit 1; }
    sleep 1
  else
    end "$holder"
  fi
done
for folder in "$root"/sessions/*; do
  other=${folder##*/}
  [ "$other" = "$name" ] || alive "$other" || [ -z "$(find "$folder" -maxdepth 0 -mmin +1)" ] || end "$other"
done
echo ready
read -r line
# It may be another's by now: what was left of a session whose computer had gone is cleaned.
[ "$(readlink "$root/current")" != "$name" ] || rm -f "$root/current"
rm -rf "$root/sessions/$name"
