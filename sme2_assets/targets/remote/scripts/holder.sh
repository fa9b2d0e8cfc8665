# Who holds the device, if anyone does.
section holder; [ ! -e "$root/lock" ] || take || echo "$holder"
section end
