// macOS: dyld lists the images of the process. Written after Apple's documentation; not run yet.
#include "modules.h"

#include <cstring>

#include <mach-o/dyld.h>
#include <mach-o/loader.h>
#include <mach/vm_prot.h>

namespace sme2 {
namespace {

Module described(const mach_header_64* header, int64_t slide, const char* path) {
  Module module;
  module.path = path == nullptr ? "" : path;
  module.base = reinterpret_cast<uint64_t>(header);
  const auto* at = reinterpret_cast<const unsigned char*>(header + 1);
  for (uint32_t i = 0; i < header->ncmds; ++i) {
    load_command command = {};
    std::memcpy(&command, at, sizeof(command));
    if (command.cmd == LC_SEGMENT_64) {
      segment_command_64 segment = {};
      std::memcpy(&segment, at, sizeof(segment));
      // A segment without any permission is the empty page at zero.
      if (segment.initprot != VM_PROT_NONE) {
        const uint64_t start = segment.vmaddr + static_cast<uint64_t>(slide);
        module.segments.push_back({start, start + segment.vmsize, (segment.initprot & VM_PROT_READ) != 0});
      }
    } else if (command.cmd == LC_UUID) {
      uuid_command uuid = {};
      std::memcpy(&uuid, at, sizeof(uuid));
      module.build_id = hexadecimal(uuid.uuid, sizeof(uuid.uuid));
    }
    at += command.cmdsize;
  }
  return module;
}

}  // namespace

std::vector<Module> loaded_modules() {
  std::vector<Module> modules;
  for (uint32_t i = 0; i < ::_dyld_image_count(); ++i) {
    const auto* header = reinterpret_cast<const mach_header_64*>(::_dyld_get_image_header(i));
    if (header != nullptr && header->magic == MH_MAGIC_64) {
      modules.push_back(described(header, ::_dyld_get_image_vmaddr_slide(i), ::_dyld_get_image_name(i)));
    }
  }
  return modules;
}

}  // namespace sme2
