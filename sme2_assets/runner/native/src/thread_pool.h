// ExecuTorch's thread pool: its size, and tasks for each of its threads.
#pragma once

#include <cstdint>
#include <functional>

namespace sme2 {

// Must come before a program is loaded: delegates keep a pointer to the pool they were created with.
void set_thread_count(uint32_t threads);

// Calls `task` once on each of the pool's `threads`; the calling thread is one of them. `task` must not throw.
void on_every_thread(uint32_t threads, const std::function<void()>& task);

}  // namespace sme2
