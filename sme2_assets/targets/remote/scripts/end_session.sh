# The name comes in two halves: whole, it would be among the words of this very process.
end "$3$4"
