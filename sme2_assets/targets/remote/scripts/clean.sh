mkdir -p "$root" || exit 1
take || { section held; echo "$holder"; section end; exit 0; }
section freed; du -sk "$root" 2>/dev/null | cut -f1
# What lies beside these is not ours.
rm -rf "$root/sessions" "$root/store" "$root/programs" || exit 1
section end
