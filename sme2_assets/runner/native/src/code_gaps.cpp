#include "code_gaps.h"

#include <algorithm>
#include <cstring>
#include <optional>

#if defined(__linux__) && defined(__aarch64__)
#include <link.h>
#endif

namespace sme2 {
namespace {

constexpr uint32_t kNop = 0xD503201F;

int64_t sign_extended(uint32_t value, int bits) {
  const uint32_t sign = 1u << (bits - 1);
  return static_cast<int64_t>(value ^ sign) - static_cast<int64_t>(sign);
}

// How many words away a branch leads; calls are none. 0: not a branch.
int64_t branch_distance(uint32_t word) {
  if ((word & 0xFC000000) == 0x14000000) {  // B
    return sign_extended(word & 0x03FFFFFF, 26);
  }
  if ((word & 0xFF000000) == 0x54000000 || (word & 0x7E000000) == 0x34000000) {  // B.cond, CBZ, CBNZ
    return sign_extended(word >> 5 & 0x7FFFF, 19);
  }
  if ((word & 0x7E000000) == 0x36000000) {  // TBZ, TBNZ
    return sign_extended(word >> 5 & 0x3FFF, 14);
  }
  return 0;
}

bool never_goes_on(uint32_t word) {
  const bool jump = (word & 0xFC000000) == 0x14000000;
  const bool br_or_ret = (word & 0xFFBF0000) == 0xD61F0000;
  return jump || br_or_ret;
}

bool padding(uint32_t word) { return word == 0 || word == kNop; }

}  // namespace

std::vector<size_t> function_starts(const uint32_t* words, size_t count) {
  // crossed[i] counts branches that lead across the border before word i, as differences from border to border.
  std::vector<int64_t> crossed(count + 1, 0);
  for (size_t i = 0; i < count; ++i) {
    const int64_t target = static_cast<int64_t>(i) + branch_distance(words[i]);
    if (target == static_cast<int64_t>(i) || target < 0 || target >= static_cast<int64_t>(count)) {
      continue;
    }
    const auto other = static_cast<size_t>(target);
    crossed[std::min(i, other) + 1] += 1;
    crossed[std::max(i, other) + 1] -= 1;
  }
  std::vector<size_t> starts;
  int64_t open = 0;
  bool ended = true;
  for (size_t i = 0; i < count; ++i) {
    open += crossed[i];
    if (ended && open == 0 && !padding(words[i])) {
      starts.push_back(i);
      ended = false;
    }
    if (never_goes_on(words[i])) {
      ended = true;
    } else if (!padding(words[i])) {
      ended = false;
    }
  }
  return starts;
}

#if defined(__linux__) && defined(__aarch64__)

namespace {

struct Object {
  uint64_t pc = 0;
  uint64_t text_start = 0;  // the executable, readable segment around pc; 0: none
  uint64_t text_end = 0;
  uint64_t table = 0;  // .eh_frame_hdr; 0: none
};

int find_object(struct dl_phdr_info* info, size_t, void* data) {
  auto& object = *static_cast<Object*>(data);
  uint64_t table = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    const uint64_t start = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_GNU_EH_FRAME) {
      table = start;
    } else if (segment.p_type == PT_LOAD && (segment.p_flags & (PF_R | PF_X)) == (PF_R | PF_X) &&
               object.pc >= start && object.pc < start + segment.p_filesz) {
      object.text_start = start;
      object.text_end = start + segment.p_filesz;
    }
  }
  object.table = table;
  return object.text_start != 0 ? 1 : 0;
}

template <typename T>
T read_at(uint64_t address) {
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof(value));
  return value;
}

// The sorted table of .eh_frame_hdr in the one form that linkers write it: pairs of 32-bit offsets from its own
// start, to a function and to its entry in .eh_frame.
class UnwindTable {
 public:
  static std::optional<UnwindTable> at(uint64_t address) {
    constexpr uint8_t kForm[] = {1, 0x1B, 0x03, 0x3B};  // version, and the encodings of pointer, count and table
    if (address == 0 || std::memcmp(reinterpret_cast<const void*>(address), kForm, sizeof(kForm)) != 0) {
      return std::nullopt;
    }
    return UnwindTable(address, read_at<uint32_t>(address + 8));
  }

  uint32_t count() const { return count_; }
  uint64_t start(uint32_t i) const { return address_ + static_cast<int64_t>(read_at<int32_t>(entry(i))); }

  // Where function i ends; its start where the entry is in a form not known here.
  uint64_t end(uint32_t i) const {
    const uint64_t description = address_ + static_cast<int64_t>(read_at<int32_t>(entry(i) + 4));
    const uint64_t begin = description + 8 + static_cast<int64_t>(read_at<int32_t>(description + 8));
    return begin == start(i) ? begin + read_at<uint32_t>(description + 12) : start(i);
  }

  // The number of functions that start at `pc` or before.
  uint32_t before(uint64_t pc) const {
    uint32_t low = 0;
    uint32_t high = count_;
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (start(middle) <= pc) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

 private:
  UnwindTable(uint64_t address, uint32_t count) : address_(address), count_(count) {}
  uint64_t entry(uint32_t i) const { return address_ + 12 + uint64_t{8} * i; }

  uint64_t address_;
  uint32_t count_;
};

}  // namespace

uint64_t CodeGaps::function_start(uint64_t pc) {
  Object object;
  object.pc = pc;
  ::dl_iterate_phdr(&find_object, &object);
  if (object.text_start == 0) {
    return 0;
  }
  uint64_t low = object.text_start;
  uint64_t high = object.text_end;
  if (const auto table = UnwindTable::at(object.table)) {
    const uint32_t before = table->before(pc);
    low = before > 0 ? std::max(low, table->end(before - 1)) : low;
    high = before < table->count() ? std::min(high, table->start(before)) : high;
  }
  if (low > pc || high <= pc || low % sizeof(uint32_t) != 0) {
    return 0;
  }
  auto found = starts_.find(low);
  if (found == starts_.end()) {
    std::vector<uint64_t> starts;
    for (const size_t i : function_starts(reinterpret_cast<const uint32_t*>(low), (high - low) / sizeof(uint32_t))) {
      starts.push_back(low + i * sizeof(uint32_t));
    }
    found = starts_.emplace(low, std::move(starts)).first;
  }
  const auto next = std::upper_bound(found->second.begin(), found->second.end(), pc);
  return next == found->second.begin() ? 0 : *(next - 1);
}

#else

uint64_t CodeGaps::function_start(uint64_t) { return 0; }

#endif

}  // namespace sme2
