// CPUs without SME: nothing to detect, nothing to mask.
#include "cpu_features.h"

namespace sme2 {

PlatformFeatures read_platform_features() {
  PlatformFeatures features;
#if defined(__x86_64__) || defined(_M_X64)
  features.arch = "x86_64";
#else
  features.arch = "unknown";
#endif
  return features;
}

}  // namespace sme2
