// The size of ExecuTorch's thread pool.
#pragma once

#include <cstdint>

namespace sme2 {

// Must come before a program is loaded: delegates keep a pointer to the pool they were created with.
void set_thread_count(uint32_t threads);

}  // namespace sme2
