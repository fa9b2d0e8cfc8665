#include "thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

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

// pthreadpool's C interface, in the same library: unlike ThreadPool::run it is the same in every version.
extern "C" {
struct pthreadpool;
void pthreadpool_parallelize_1d(pthreadpool* pool, void (*task)(void*, size_t), void* context, size_t range,
                                uint32_t flags);
}

namespace executorch::extension::threadpool {

pthreadpool* get_pthreadpool();

}  // namespace executorch::extension::threadpool

namespace sme2 {
namespace {

constexpr auto kMeetingPatience = std::chrono::seconds(5);

// A thread that has done its task waits for the others, so that none of them does two.
struct Meeting {
  const std::function<void()>* task;
  uint32_t threads;
  std::chrono::steady_clock::time_point deadline;
  std::atomic<uint32_t> arrived{0};
  std::atomic<bool> complete{true};
};

void attend(void* context, size_t) {
  Meeting& meeting = *static_cast<Meeting*>(context);
  (*meeting.task)();
  meeting.arrived.fetch_add(1);
  while (meeting.arrived.load() < meeting.threads) {
    if (std::chrono::steady_clock::now() > meeting.deadline) {
      meeting.complete = false;
      return;
    }
    std::this_thread::yield();
  }
}

}  // namespace

void on_every_thread(uint32_t threads, const std::function<void()>& task) {
  if (threads == 1) {
    task();
    return;
  }
  Meeting meeting{&task, threads, std::chrono::steady_clock::now() + kMeetingPatience};
  pthreadpool_parallelize_1d(executorch::extension::threadpool::get_pthreadpool(), attend, &meeting, threads, 0);
  if (!meeting.complete) {
    throw Failure(ExitCode::inference, "the threads of the pool did not all answer", "try fewer --threads");
  }
}

void set_thread_count(uint32_t threads) {
  auto* pool = executorch::extension::threadpool::get_threadpool();
  if (pool == nullptr || !pool->_unsafe_reset_threadpool(threads) || pool->get_thread_count() != threads) {
    throw Failure(ExitCode::inference, "the thread pool could not be given " + std::to_string(threads) + " thread(s)",
                  "try fewer --threads");
  }
}

}  // namespace sme2
