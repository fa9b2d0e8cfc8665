// Linux, Android and whatever else has ELF files: the loader lists what it mapped.
#include "modules.h"

#include <algorithm>
#include <cstring>

#include <dlfcn.h>
#include <link.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

namespace sme2 {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint32_t kBuildIdNote = 3;  // NT_GNU_BUILD_ID

// The loader gives the program no name; it is the one it was started by.
std::string program_path() {
  Dl_info info = {};
  const bool known = ::dladdr(reinterpret_cast<void*>(&program_path), &info) != 0;
  return known && info.dli_fname != nullptr ? info.dli_fname : "";
}

uint64_t padded(uint64_t size) { return (size + 3) / 4 * 4; }

std::optional<std::string> build_id_in(uint64_t notes, uint64_t size) {
  for (const uint64_t end = notes + size; notes + sizeof(ElfW(Nhdr)) <= end;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, reinterpret_cast<const void*>(notes), sizeof(note));
    const uint64_t name = notes + sizeof(note);
    const uint64_t body = name + padded(note.n_namesz);
    if (body + note.n_descsz > end) {
      break;
    }
    if (note.n_type == kBuildIdNote && note.n_namesz == 4 &&
        std::memcmp(reinterpret_cast<const void*>(name), "GNU", 4) == 0) {
      return hexadecimal(reinterpret_cast<const void*>(body), note.n_descsz);
    }
    notes = body + padded(note.n_descsz);
  }
  return std::nullopt;
}

bool is_from_the_kernel([[maybe_unused]] uint64_t base) {
#if defined(__linux__)
  return base != 0 && base == ::getauxval(AT_SYSINFO_EHDR);
#else
  return false;
#endif
}

int add_module(struct dl_phdr_info* info, size_t, void* data) {
  Module module;
  module.path = info->dlpi_name == nullptr || *info->dlpi_name == '\0' ? program_path() : info->dlpi_name;
  uint64_t first = UINT64_MAX;
  uint64_t first_size = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const uint64_t start = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD) {
      module.segments.push_back({start, start + header.p_memsz, (header.p_flags & PF_R) != 0});
      if (start < first) {
        first = start;
        first_size = header.p_filesz;
      }
    } else if (header.p_type == PT_NOTE && (header.p_flags & PF_R) != 0 && !module.build_id) {
      module.build_id = build_id_in(start, header.p_memsz);
    }
  }
  if (!module.segments.empty()) {
    module.base = first / kPage * kPage;
    if (is_from_the_kernel(module.base)) {
      module.image = hexadecimal(reinterpret_cast<const void*>(first), first_size);
    }
    static_cast<std::vector<Module>*>(data)->push_back(std::move(module));
  }
  return 0;
}

}  // namespace

std::vector<Module> loaded_modules() {
  std::vector<Module> modules;
  ::dl_iterate_phdr(&add_module, &modules);
  return modules;
}

}  // namespace sme2
