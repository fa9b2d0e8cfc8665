# What only one device has: Android's serial number and build; the id of a Linux installation, or else its name in the
# network.
for name in ro.serialno ro.build.fingerprint; do section $name; ask getprop $name; done
id=$(cat /etc/machine-id 2>/dev/null)
[ ${#id} = 32 ] || id=$(uname -n)
section installation; echo "$id"
section end
