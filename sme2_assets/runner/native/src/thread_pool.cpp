#include "thread_pool.h"

#include <cstddef>
#include <string>

#include "failure.h"

// The wheel exports the pool from libexecutorch_threadpool but ships no threadpool.h (it would need
// pthreadpool's header too). The members called here are declared as the library exports them; the class is
// only ever handled by a pointer that the library gave, so its size does not matter.
namespace executorch::extension::threadpool {

class ThreadPool {
 public:
  ThreadPool() = delete;
  size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(uint32_t thread_count);
};

ThreadPool* get_threadpool();

}  // namespace executorch::extension::threadpool

namespace sme2 {

void set_thread_count(uint32_t threads) {
  auto* pool = executorch::extension::threadpool::get_threadpool();
  if (pool == nullptr || !pool->_unsafe_reset_threadpool(threads) || pool->get_thread_count() != threads) {
    throw Failure(ExitCode::inference,
                  "the thread pool could not be given " + std::to_string(threads) + " thread(s)",
                  "try fewer --threads");
  }
}

}  // namespace sme2
