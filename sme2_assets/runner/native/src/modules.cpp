#include "modules.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include <dlfcn.h>

namespace sme2 {
namespace {

// Text may be mapped to be executed and not read: only a segment that says it is readable is touched.
std::optional<uint32_t> instruction_word([[maybe_unused]] const Segment& segment, [[maybe_unused]] uint64_t pc) {
#if defined(__aarch64__) || defined(__arm64__)
  uint32_t word = 0;
  if (segment.readable && pc % sizeof(word) == 0 && segment.end - pc >= sizeof(word)) {
    std::memcpy(&word, reinterpret_cast<const void*>(pc), sizeof(word));
    return word;
  }
#endif
  return std::nullopt;
}

}  // namespace

Place place_of(const std::vector<Module>& modules, uint64_t pc) {
  for (size_t i = 0; i < modules.size(); ++i) {
    for (const Segment& segment : modules[i].segments) {
      if (pc >= segment.start && pc < segment.end) {
        return {i, pc - modules[i].base, instruction_word(segment, pc)};
      }
    }
  }
  return {std::nullopt, pc, std::nullopt};
}

std::string modules_text() {
  std::ostringstream text;
  text << std::hex << "clock " << reinterpret_cast<uintptr_t>(::dlsym(RTLD_DEFAULT, "clock_gettime")) << "\n";
  for (const Module& module : loaded_modules()) {
    uint64_t end = 0;
    for (const Segment& segment : module.segments) {
      end = std::max(end, segment.end);
    }
    text << "module " << module.base << " " << end << " " << module.build_id.value_or("-") << " " << module.path
         << "\n";
  }
  return text.str();
}

std::string hexadecimal(const void* data, size_t size) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::string text;
  text.reserve(2 * size);
  for (size_t i = 0; i < size; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 0xF];
  }
  return text;
}

}  // namespace sme2
