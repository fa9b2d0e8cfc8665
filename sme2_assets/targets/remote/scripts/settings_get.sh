# Names and values are positional parameters: nothing of them is read as shell words.
command -v settings >/dev/null 2>&1 || exit 44
for name in "$@"; do
  value=$(settings get global "$name" </dev/null) || exit 1
  printf '%s=%s\n' "$name" "$value"
done
