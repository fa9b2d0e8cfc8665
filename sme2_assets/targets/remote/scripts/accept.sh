# From the session's folder into the store, when what arrived is what was sent.
root=$1; incoming=$2; shift 2
for sha in "$@"; do
  found=$(sha256sum "$incoming/$sha") || exit 1
  if [ "${found%% *}" = "$sha" ]; then
    chmod 755 "$incoming/$sha" && mv -f "$incoming/$sha" "$root/store/$sha" || exit 1
  else
    echo "damaged $sha"
  fi
done
