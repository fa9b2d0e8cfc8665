// The mask on macOS: a dylib whose interpose section makes dyld send every other image's sysctlbyname()
// here. cpuinfo reads hw.optional.arm.FEAT_SME and its kin through it.
// Not run yet: written from Apple's documentation, no Mac with SME was at hand.
#include "mask_macos.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <sys/sysctl.h>

namespace {

bool masked() {
  const char* state = std::getenv("SME2_RUNNER_SME2");
  return state != nullptr && std::strcmp(state, "off") == 0;
}

bool is_sme(const char* name) {
  for (const char* prefix : {"hw.optional.arm.FEAT_SME", "hw.optional.arm.SME_", "hw.optional.arm.sme_"}) {
    if (std::strncmp(name, prefix, std::strlen(prefix)) == 0) {
      return true;
    }
  }
  return false;
}

int masked_sysctlbyname(const char* name, void* old, size_t* old_size, void* new_value, size_t new_size) {
  // dyld leaves this image's own calls alone, so this one reaches the system.
  const int status = ::sysctlbyname(name, old, old_size, new_value, new_size);
  if (status == 0 && name != nullptr && old != nullptr && old_size != nullptr && masked() && is_sme(name)) {
    std::memset(old, 0, *old_size);
  }
  return status;
}

struct Interpose {
  const void* replacement;
  const void* original;
};

__attribute__((used, section("__DATA,__interpose"))) const Interpose kInterpose[] = {
    {reinterpret_cast<const void*>(&masked_sysctlbyname), reinterpret_cast<const void*>(&::sysctlbyname)}};

}  // namespace

extern "C" int sme2_unmasked_sysctlbyname(const char* name, void* old, size_t* old_size) {
  return ::sysctlbyname(name, old, old_size, nullptr, 0);
}
