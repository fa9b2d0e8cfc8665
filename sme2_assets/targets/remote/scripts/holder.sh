# Who holds the machine, if anyone does.
why=$(refusal)
[ -z "$why" ] || { section refused; echo "$why"; }
latest
section holder; ! alive "$holder" || echo "$holder"
section end
