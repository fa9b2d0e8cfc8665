#include "counter.h"

#include <algorithm>
#include <charconv>
#include <istream>
#include <ostream>
#include <stdexcept>

namespace sme2 {
namespace {

// movz xzr, #0x5E00 and the three numbers after it.
constexpr uint32_t kFirstMark = 0xD28BC01F;
constexpr uint32_t kMarkStep = 1 << 5;
constexpr uint32_t kMostThreads = 4096;

std::runtime_error unexpected(const char* what, std::string_view line) {
  return std::runtime_error(std::string(what) + ": '" + std::string(line.substr(0, 200)) + "'");
}

bool starts_with(std::string_view line, std::string_view begin) { return line.substr(0, begin.size()) == begin; }

template <typename Number>
Number number_in(std::string_view text, int base, std::string_view line) {
  Number number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || stop != text.data() + text.size()) {
    throw unexpected("not a number in the emulator's log", line);
  }
  return number;
}

// What is between two characters, the first of them at or after `from`; where it ends is told, too.
std::string_view between(std::string_view line, char open, char close, size_t from, size_t& end) {
  const size_t begin = line.find(open, from);
  end = begin == std::string_view::npos ? begin : line.find(close, begin + 1);
  if (end == std::string_view::npos) {
    throw unexpected("not a line of the emulator's log", line);
  }
  return line.substr(begin + 1, end - begin - 1);
}

Mark mark_in(const std::vector<uint32_t>& words) {
  for (const uint32_t word : words) {
    const uint32_t number = (word - kFirstMark) / kMarkStep;
    if ((word - kFirstMark) % kMarkStep == 0 && number < static_cast<uint32_t>(Mark::none)) {
      return static_cast<Mark>(number);
    }
  }
  return Mark::none;
}

}  // namespace

Layout read_layout(std::istream& modules) {
  Layout layout;
  std::string kind, build_id, path;
  if (!(modules >> kind >> std::hex >> layout.clock) || kind != "clock") {
    throw std::runtime_error("the runner did not say where it has its clock");
  }
  uint64_t begin = 0, end = 0;
  while (modules >> kind >> begin >> end >> build_id && std::getline(modules >> std::ws, path)) {
    // A runner with everything linked in has the delegate in its first module, the program.
    const bool of_delegate = path.find("xnnpack", path.find_last_of('/') + 1) != std::string::npos;
    if (of_delegate || layout.library_end == 0) {
      layout.library_begin = begin;
      layout.library_end = end;
    }
  }
  if (layout.library_end == 0) {
    throw std::runtime_error("the runner did not say where its libraries are");
  }
  return layout;
}

void Counter::read(std::string_view line) {
  if (translating_) {
    read_translated(line);
  } else if (starts_with(line, "Trace ")) {
    settle();
    logged_ = execution_of(line);
    has_logged_ = true;
  } else if (starts_with(line, "IN:")) {
    translating_ = true;
    translated_ = {};
  } else if (starts_with(line, "Stopped execution of TB chain before ")) {
    take_back(line);
  } else if (line.find_first_not_of('-') != std::string_view::npos) {
    throw unexpected("not a line of the emulator's log", line);
  }
}

void Counter::finish() {
  settle();
  if (translating_ || !stopped_) {
    throw std::runtime_error("the emulator's log ends before the measured inferences do");
  }
  out_ << "end\n";
}

// `0x7fef7ed3ac40:  d503201f  nop`, up to an empty line.
void Counter::read_translated(std::string_view line) {
  if (line.empty()) {
    translating_ = false;
    keep_translated();
    return;
  }
  const size_t colon = line.find(':');
  const size_t word = colon == std::string_view::npos ? colon : line.find_first_not_of(' ', colon + 1);
  if (!starts_with(line, "0x") || word == std::string_view::npos) {
    throw unexpected("not an instruction in the emulator's log", line);
  }
  const auto address = number_in<uint64_t>(line.substr(2, colon - 2), 16, line);
  if (translated_.words.empty()) {
    translated_.address = address;
  }
  const std::string_view digits = line.substr(word, line.find(' ', word) - word);
  if (digits.size() != 8 || address != translated_.address + 4 * translated_.words.size()) {
    throw unexpected("not the next instruction of a block", line);
  }
  translated_.words.push_back(number_in<uint32_t>(digits, 16, line));
}

// A block is translated again for another state of the CPU, perhaps to another length, and after QEMU's memory for
// translations was full. Only where instructions differ is it another program that was loaded there.
void Counter::keep_translated() {
  if (translated_.words.empty()) {
    throw std::runtime_error("a block without instructions in the emulator's log");
  }
  std::vector<uint32_t>& latest = latest_[translated_.address];
  const size_t common = std::min(latest.size(), translated_.words.size());
  if (!std::equal(latest.begin(), latest.begin() + common, translated_.words.begin())) {
    blocks_of_.erase(translated_.address);
  }
  latest = std::move(translated_.words);
}

// `Trace 0: 0x7fef75200100 [80083009331/00007fef7ed3ac40/00000001/00000200] main`
Counter::Execution Counter::execution_of(std::string_view line) {
  size_t end = 0;
  const auto thread = number_in<uint32_t>(between(line, ' ', ':', 0, end), 10, line);
  const std::string_view state = between(line, '[', ']', end, end);
  const auto address = number_in<uint64_t>(between(state, '/', '/', 0, end), 16, line);
  if (thread >= kMostThreads) {
    throw unexpected("more threads than a runner has", line);
  }
  return {block_of(address, state), thread};
}

size_t Counter::block_of(uint64_t address, std::string_view state) {
  auto& known = blocks_of_[address];
  for (const auto& [of_state, block] : known) {
    if (of_state == state) {
      return block;
    }
  }
  const auto latest = latest_.find(address);
  if (latest == latest_.end()) {
    throw unexpected("a block is executed that was never translated", state);
  }
  known.emplace_back(state, blocks_.size());
  blocks_.push_back({address, latest->second, mark_in(latest->second)});
  written_.push_back(false);
  return blocks_.size() - 1;
}

// `Stopped execution of TB chain before 0x7fef75200100 [00007fef7ed3ac40] main`: the CPU was interrupted.
void Counter::take_back(std::string_view line) {
  size_t end = 0;
  const auto address = number_in<uint64_t>(between(line, '[', ']', 0, end), 16, line);
  if (!has_logged_ || blocks_[logged_.block].address != address) {
    throw unexpected("an execution is taken back that is not the last", line);
  }
  has_logged_ = false;
}

// What the last line of an execution means, now that it stands.
void Counter::settle() {
  if (!has_logged_) {
    return;
  }
  has_logged_ = false;
  const Block& block = blocks_[logged_.block];
  if (block.mark == Mark::start) {
    layout_ = layout_of_process_();
    marking_thread_ = logged_.thread;
    counting_ = true;
    return;
  }
  if (!counting_) {
    return;
  }
  if (logged_.thread == marking_thread_) {
    const bool in_library = block.address >= layout_.library_begin && block.address < layout_.library_end;
    if (has_read_clock_ && in_library) {
      write_border("clock", block.address);
      has_read_clock_ = false;
    }
    has_read_clock_ = has_read_clock_ || block.address == layout_.clock;
  }
  // A mark itself is outside of its event.
  switch (block.mark) {
    case Mark::begin:
      count(logged_);
      write_border("begin", 0);
      return;
    case Mark::end:
      write_border("end", 0);
      break;
    case Mark::stop:
      write_border("stop", 0);
      counting_ = false;
      stopped_ = true;
      return;
    default:
      break;
  }
  count(logged_);
}

void Counter::count(const Execution& execution) {
  if (execution.thread >= executions_.size()) {
    executions_.resize(execution.thread + 1);
  }
  std::vector<uint64_t>& executions = executions_[execution.thread];
  if (execution.block >= executions.size()) {
    executions.resize(blocks_.size());
  }
  if (executions[execution.block]++ == 0) {
    executed_.push_back(execution);
  }
}

void Counter::write_border(const char* kind, uint64_t address) {
  for (const auto& [block, thread] : executed_) {
    if (!written_[block]) {
      written_[block] = true;
      out_ << "block " << block << std::hex << " " << blocks_[block].address;
      for (const uint32_t word : blocks_[block].words) {
        out_ << " " << word;
      }
      out_ << std::dec << "\n";
    }
    out_ << block << " " << thread << " " << executions_[thread][block] << "\n";
    executions_[thread][block] = 0;
  }
  executed_.clear();
  out_ << "border " << kind << " " << std::hex << address << std::dec << "\n";
}

}  // namespace sme2
