# What only one device has: Android's serial number and build, and which Linux is installed.
for name in ro.serialno ro.build.fingerprint; do section $name; ask getprop $name; done
section installation; installation
section end
