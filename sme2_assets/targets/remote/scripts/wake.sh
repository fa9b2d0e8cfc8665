# It writes stay_on_while_plugged_in too; the mode's own value comes after it.
command -v svc >/dev/null 2>&1 || exit 44
svc power stayon true </dev/null
