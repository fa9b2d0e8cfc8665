# The name comes in two halves: whole, it would be among the words of this very process.
root=$1
end "$2$3"
exit 0
