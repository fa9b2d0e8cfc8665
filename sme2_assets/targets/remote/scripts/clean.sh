root=$1
[ -d "$root" ] || exit 0
holder=$(readlink "$root/current") && alive "$holder" && echo "held by $holder" && exit 0
kib=$(du -sk "$root" | cut -f1)
rm -rf "$root/sessions" "$root/store" "$root/programs" "$root/current" || exit 1
echo "$kib"
