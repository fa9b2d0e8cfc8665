// Hiding SME and SME2 from the kernels. The state comes from the environment and not from a flag, because
// the libraries may ask for the CPU's features in their initialisers, before main() sees a flag.
#pragma once

namespace sme2 {

constexpr const char* kMaskVariable = "SME2_RUNNER_SME2";

#if defined(__linux__) && defined(__aarch64__)
// What libc says, past the mask (mask_linux.cpp).
unsigned long unmasked_getauxval(unsigned long type);
#endif

}  // namespace sme2
