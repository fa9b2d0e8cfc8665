#include "cpu_features.h"

#include <algorithm>

#include <dlfcn.h>
#include <sys/prctl.h>

#include "hwcap_table.h"
#include "mask.h"

namespace sme2 {
namespace {

// Older headers lack the names; the numbers are kernel ABI.
constexpr int kPrSveGetVl = 51;
constexpr int kPrSmeGetVl = 64;
constexpr int kVectorLengthMask = 0xFFFF;

template <typename Getauxval>
std::vector<std::string> feature_names(Getauxval getauxval) {
  std::vector<std::string> names;
  for (const HwcapBit& entry : kHwcapBits) {
    if (getauxval(entry.word) >> entry.bit & 1) {
      names.emplace_back(entry.name);
    }
  }
  return names;
}

std::optional<int64_t> vector_bits(const std::vector<std::string>& features, const char* feature, int option) {
  if (std::find(features.begin(), features.end(), feature) == features.end()) {
    return std::nullopt;
  }
  const int answer = ::prctl(option, 0, 0, 0, 0);
  if (answer < 0) {
    return std::nullopt;
  }
  return int64_t{answer & kVectorLengthMask} * 8;
}

}  // namespace

PlatformFeatures read_platform_features() {
  PlatformFeatures features;
  features.arch = "aarch64";
  features.seen = feature_names(unmasked_getauxval);
  // Looked up by name, as the libraries' references are resolved: this proves that the mask is in their way.
  const auto found = reinterpret_cast<unsigned long (*)(unsigned long)>(::dlsym(RTLD_DEFAULT, "getauxval"));
  features.visible = feature_names(found == nullptr ? unmasked_getauxval : found);
  features.sme_vector_bits = vector_bits(features.seen, "sme", kPrSmeGetVl);
  features.sve_vector_bits = vector_bits(features.seen, "sve", kPrSveGetVl);
  return features;
}

}  // namespace sme2
