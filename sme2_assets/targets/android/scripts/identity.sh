for name in ro.serialno ro.build.fingerprint; do getprop $name 2>/dev/null || :; done
