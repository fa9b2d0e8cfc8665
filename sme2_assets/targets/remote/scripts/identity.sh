# What only one device has: Android's serial number and build, the id of a Linux installation.
for name in ro.serialno ro.build.fingerprint; do getprop $name 2>/dev/null || :; done
cat /etc/machine-id 2>/dev/null || :
