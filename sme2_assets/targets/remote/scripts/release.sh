# Ends our session where the device has not noticed yet that its connection is gone.
[ ! -e "$root/lock" ] || take || [ "$holder" != "$3" ] || kill -9 "$process"
