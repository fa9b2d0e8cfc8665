// Counts which blocks of instructions a process executed, from the log of QEMU (-d in_asm,exec,nochain).
//
// The log has each block once with its instructions, and each execution of it. The runner marks the events of its
// tracer with no-ops (runner/native/src/marks.h). A delegate that times its operators itself reads the clock after
// each: the first block of the delegate's library after such a read is a border as well.
//
// Text that is not as expected is an error: a wrong count would look like a right one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sme2 {

enum class Mark { start, stop, begin, end, none };

struct Block {
  uint64_t address = 0;
  std::vector<uint32_t> words;
  Mark mark = Mark::none;
};

// Where the process has its clock, and the library of the delegate.
struct Layout {
  uint64_t clock = 0;
  uint64_t library_begin = 0;
  uint64_t library_end = 0;
};

// Reads what the runner wrote before it set its first mark.
Layout read_layout(std::istream& modules);

class Counter {
 public:
  // Nothing asks for the layout before the first mark. The counts are written to `out`: a line for each block,
  // `block ADDRESS WORD...`; one for each border, `border KIND ADDRESS`, after those of what was executed since the
  // one before, `BLOCK THREAD EXECUTIONS`; and a last one, `end`.
  Counter(std::function<Layout()> layout, std::ostream& out) : layout_of_process_(std::move(layout)), out_(out) {}

  void read(std::string_view line);
  void finish();

 private:
  struct Execution {
    size_t block = 0;
    uint32_t thread = 0;
  };

  void read_translated(std::string_view line);
  void keep_translated();
  Execution execution_of(std::string_view line);
  size_t block_of(uint64_t address, std::string_view state);
  void settle();
  void take_back(std::string_view line);
  void count(const Execution& execution);
  void write_border(const char* kind, uint64_t address);

  std::function<Layout()> layout_of_process_;
  std::ostream& out_;
  Layout layout_;
  bool translating_ = false;
  Block translated_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> latest_;
  // By address, then by the state of the CPU that it was translated for.
  std::unordered_map<uint64_t, std::vector<std::pair<std::string, size_t>>> blocks_of_;
  std::vector<Block> blocks_;
  // The last line, which QEMU may still take back.
  Execution logged_;
  bool has_logged_ = false;
  // Since the last border: by thread and block.
  std::vector<std::vector<uint64_t>> executions_;
  std::vector<Execution> executed_;
  std::vector<bool> written_;
  uint32_t marking_thread_ = 0;
  bool has_read_clock_ = false;
  bool counting_ = false;
  bool stopped_ = false;
};

}  // namespace sme2
