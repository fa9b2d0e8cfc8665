// Hand-written assembly leaves neither exported symbols nor unwind tables: to the process it is a gap between
// known functions. Where its functions begin shows in how the branches hang together. AArch64 ELF only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace sme2 {

// Indices in `words` at which a function begins: after a return or jump, where no branch leads across.
std::vector<size_t> function_starts(const uint32_t* words, size_t count);

class CodeGaps {
 public:
  // The start of the function around `pc`, an address that the unwind tables do not know. 0: cannot be told.
  uint64_t function_start(uint64_t pc);

 private:
  std::map<uint64_t, std::vector<uint64_t>> starts_;  // by the start of the gap
};

}  // namespace sme2
