// The mask on Linux. cpuinfo, which XNNPACK asks, reads getauxval(); this one stands before libc's in the
// search order, since the executable exports it. It runs during library initialisation: nothing here
// depends on a constructor of ours.
#include "mask.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>

#include "hwcap_table.h"

namespace sme2 {
namespace {

using Getauxval = unsigned long (*)(unsigned long);

std::atomic<Getauxval> libc_getauxval{nullptr};

bool masked() {
  const char* state = std::getenv(kMaskVariable);
  return state != nullptr && std::strcmp(state, "off") == 0;
}

}  // namespace

unsigned long unmasked_getauxval(unsigned long type) {
  Getauxval function = libc_getauxval.load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = reinterpret_cast<Getauxval>(::dlsym(RTLD_NEXT, "getauxval"));
    if (function == nullptr) {
      // Without libc's answer every feature would seem absent: a wrong measurement, not a failed one.
      std::abort();
    }
    libc_getauxval.store(function, std::memory_order_relaxed);
  }
  return function(type);
}

}  // namespace sme2

extern "C" __attribute__((visibility("default"))) unsigned long getauxval(unsigned long type) {
  const unsigned long value = sme2::unmasked_getauxval(type);
  return sme2::masked() ? value & ~sme2::sme_bits(type) : value;
}
