// Not run yet: see mask_macos.cpp.
#include "cpu_features.h"

#include <sys/sysctl.h>

#include "mask_macos.h"

namespace sme2 {
namespace {

// Apple's names with the names that Linux gives to the same features.
constexpr struct {
  const char* sysctl;
  const char* name;
} kFeatures[] = {
    {"hw.optional.AdvSIMD", "asimd"},
    {"hw.optional.arm.FEAT_FP16", "asimdhp"},
    {"hw.optional.arm.FEAT_FHM", "asimdfhm"},
    {"hw.optional.arm.FEAT_DotProd", "asimddp"},
    {"hw.optional.arm.FEAT_BF16", "bf16"},
    {"hw.optional.arm.FEAT_I8MM", "i8mm"},
    {"hw.optional.arm.FEAT_SME", "sme"},
    {"hw.optional.arm.FEAT_SME2", "sme2"},
    {"hw.optional.arm.FEAT_SME2p1", "sme2p1"},
    {"hw.optional.arm.FEAT_SME_F64F64", "smef64f64"},
    {"hw.optional.arm.FEAT_SME_I16I64", "smei16i64"},
    {"hw.optional.arm.FEAT_SME_F16F16", "smef16f16"},
    {"hw.optional.arm.FEAT_SME_B16B16", "smeb16b16"},
    {"hw.optional.arm.SME_F32F32", "smef32f32"},
    {"hw.optional.arm.SME_F16F32", "smef16f32"},
    {"hw.optional.arm.SME_B16F32", "smeb16f32"},
    {"hw.optional.arm.SME_I8I32", "smei8i32"},
    {"hw.optional.arm.SME_I16I32", "smei16i32"},
    {"hw.optional.arm.SME_BI32I32", "smebi32i32"},
};

int64_t value_of(int status, int64_t value) { return status == 0 ? value : 0; }

int64_t unmasked(const char* name) {
  int64_t value = 0;
  size_t size = sizeof(value);
  return value_of(sme2_unmasked_sysctlbyname(name, &value, &size), value);
}

int64_t visible(const char* name) {
  int64_t value = 0;
  size_t size = sizeof(value);
  return value_of(::sysctlbyname(name, &value, &size, nullptr, 0), value);
}

}  // namespace

PlatformFeatures read_platform_features() {
  PlatformFeatures features;
  features.arch = "aarch64";
  for (const auto& feature : kFeatures) {
    if (unmasked(feature.sysctl) != 0) {
      features.seen.emplace_back(feature.name);
    }
    if (visible(feature.sysctl) != 0) {
      features.visible.emplace_back(feature.name);
    }
  }
  const int64_t sme_vector_bytes = unmasked("hw.optional.arm.sme_max_svl_b");
  if (sme_vector_bytes > 0) {
    features.sme_vector_bits = sme_vector_bytes * 8;
  }
  return features;
}

}  // namespace sme2
