#include "functions.h"

#include <cstring>

#include <dlfcn.h>
#include <unwind.h>

#if defined(__APPLE__)
#include <mach/mach.h>
#else
#include <link.h>
#endif

#include "files.h"

namespace sme2 {
namespace {

// Stripped libraries keep their unwind tables, and these know where each function begins. 0: they do not.
uint64_t function_start(uint64_t pc) {
#if defined(__APPLE__)
  const uint64_t asked = pc;
#else
  // Meant for return addresses, which stand behind the call: it looks at the byte before the one given.
  const uint64_t asked = pc + 1;
#endif
  const auto start = reinterpret_cast<uint64_t>(::_Unwind_FindEnclosingFunction(reinterpret_cast<void*>(asked)));
  return start <= pc ? start : 0;
}

struct Symbol {
  Dl_info info = {};
  uint64_t size = 0;  // 0: not told
};

bool find_symbol(uint64_t pc, Symbol& symbol) {
#if defined(__GLIBC__)
  void* entry = nullptr;
  if (::dladdr1(reinterpret_cast<void*>(pc), &symbol.info, &entry, RTLD_DL_SYMENT) == 0) {
    return false;
  }
  symbol.size = entry == nullptr ? 0 : static_cast<const ElfW(Sym)*>(entry)->st_size;
  return true;
#else
  return ::dladdr(reinterpret_cast<void*>(pc), &symbol.info) != 0;
#endif
}

// Some systems name the last symbol before the address, however far away it ends. Where no size is told, a
// function that begins after the symbol is another one.
bool covers(const Symbol& symbol, uint64_t pc, uint64_t function) {
  const auto start = reinterpret_cast<uint64_t>(symbol.info.dli_saddr);
  if (symbol.info.dli_sname == nullptr || start == 0 || start > pc) {
    return false;
  }
  return symbol.size == 0 ? function <= start : pc - start < symbol.size;
}

#if defined(__APPLE__)

[[maybe_unused]] bool read_word(uint64_t pc, uint32_t& word) {
  vm_size_t size = 0;
  return ::vm_read_overwrite(mach_task_self(), pc, sizeof(word), reinterpret_cast<vm_address_t>(&word), &size) ==
             KERN_SUCCESS &&
         size == sizeof(word);
}

#else

struct Wanted {
  uint64_t pc;
  bool readable;
};

int look_at_segments(struct dl_phdr_info* info, size_t, void* data) {
  auto& wanted = *static_cast<Wanted*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    const uint64_t start = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && wanted.pc >= start && wanted.pc + sizeof(uint32_t) <= start + segment.p_memsz) {
      wanted.readable = (segment.p_flags & PF_R) != 0;
      return 1;
    }
  }
  return 0;
}

// Text may be mapped to be executed and not read: only a segment that says it is readable is touched.
[[maybe_unused]] bool read_word(uint64_t pc, uint32_t& word) {
  Wanted wanted = {pc, false};
  ::dl_iterate_phdr(&look_at_segments, &wanted);
  if (wanted.readable) {
    std::memcpy(&word, reinterpret_cast<const void*>(pc), sizeof(word));
  }
  return wanted.readable;
}

#endif

std::optional<uint32_t> instruction_word([[maybe_unused]] uint64_t pc) {
#if defined(__aarch64__) || defined(__arm64__)
  uint32_t word = 0;
  if (pc % sizeof(word) == 0 && read_word(pc, word)) {
    return word;
  }
#endif
  return std::nullopt;
}

}  // namespace

const Functions::Known& Functions::known_at(uint64_t pc) {
  uint64_t start = function_start(pc);
  if (start == 0) {
    start = gaps_.function_start(pc);
  }
  // Where all else fails the instruction stands for itself.
  const uint64_t key = start == 0 ? pc : start;
  const auto found = known_.find(key);
  // Looking for a name goes through every symbol of the library: once for each function, not for each address.
  if (found != known_.end()) {
    const Known& known = found->second;
    if (!known.function.symbol || (pc >= known.symbol_start && pc < known.symbol_end)) {
      return known;
    }
  }
  Known known;
  known.function.offset = key;
  Symbol symbol;
  if (find_symbol(pc, symbol) && symbol.info.dli_fbase != nullptr) {
    known.library = reinterpret_cast<uint64_t>(symbol.info.dli_fbase);
    known.function.library = base_name(symbol.info.dli_fname == nullptr ? "" : symbol.info.dli_fname);
    known.function.offset = key >= known.library ? key - known.library : pc - known.library;
    if (covers(symbol, pc, start)) {
      known.symbol_start = reinterpret_cast<uint64_t>(symbol.info.dli_saddr);
      known.symbol_end = symbol.size == 0 ? UINT64_MAX : known.symbol_start + symbol.size;
      known.function.symbol = symbol.info.dli_sname;
      known.function.offset = known.symbol_start - known.library;
    }
  }
  return known_[key] = std::move(known);
}

Location Functions::locate(uint64_t pc) {
  const Known& known = known_at(pc);
  Location location;
  location.function = known.function;
  location.address = pc - known.library;
  if (known.library != 0) {
    location.word = instruction_word(pc);
  }
  return location;
}

}  // namespace sme2
