// Addresses of the running process -> library, function and instruction. Asked after the run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "code_gaps.h"

namespace sme2 {

// A function's start within its library, and its name.
struct Function {
  std::optional<std::string> library;  // file name; none where nothing known is mapped
  uint64_t offset = 0;                 // from the start of the library
  std::optional<std::string> symbol;   // none where the function is not exported
};

struct Location {
  Function function;
  uint64_t address = 0;          // from the start of the library
  std::optional<uint32_t> word;  // the instruction, on AArch64
};

class Functions {
 public:
  Location locate(uint64_t pc);

 private:
  struct Known {
    Function function;
    uint64_t library = 0;       // where it is mapped; 0: unknown
    uint64_t symbol_start = 0;  // where the name applies
    uint64_t symbol_end = 0;
  };
  const Known& known_at(uint64_t pc);

  CodeGaps gaps_;
  std::map<uint64_t, Known> known_;  // by start, as far as that can be told without names
};

}  // namespace sme2
