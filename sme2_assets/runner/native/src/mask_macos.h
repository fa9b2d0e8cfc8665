// What the masking dylib offers the runner: the answer of the system, past the mask.
#pragma once

#include <cstddef>

extern "C" __attribute__((visibility("default"))) int sme2_unmasked_sysctlbyname(const char* name, void* old,
                                                                                 size_t* old_size);
