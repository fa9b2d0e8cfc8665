// macOS: signals cannot be aimed at one thread by a timer, so a thread of our own stops each of the others for
// a moment, reads its program counter and lets it go on. Written after Apple's documentation; not run yet.
#include "sampler.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#include <mach/mach.h>
#include <mach/mach_time.h>
#include <pthread.h>
#include <time.h>

#include "failure.h"

namespace sme2 {
namespace {

Failure cannot_start(const std::string& what) {
  return Failure(ExitCode::no_sampler, "the sampler could not be started: " + what, "leave the kernels pass out");
}

// 0 where the thread has ended.
uint64_t program_counter(thread_act_t thread) {
#if defined(__arm64__)
  arm_thread_state64_t state = {};
  mach_msg_type_number_t count = ARM_THREAD_STATE64_COUNT;
  const auto flavor = ARM_THREAD_STATE64;
#else
  x86_thread_state64_t state = {};
  mach_msg_type_number_t count = x86_THREAD_STATE64_COUNT;
  const auto flavor = x86_THREAD_STATE64;
#endif
  // Between suspend and resume nothing may allocate or lock: the thread may hold the very lock.
  if (::thread_suspend(thread) != KERN_SUCCESS) {
    return 0;
  }
  const bool good =
      ::thread_get_state(thread, flavor, reinterpret_cast<thread_state_t>(&state), &count) == KERN_SUCCESS;
  ::thread_resume(thread);
  if (!good) {
    return 0;
  }
#if defined(__arm64__)
  return static_cast<uint64_t>(arm_thread_state64_get_pc(state));
#else
  return state.__rip;
#endif
}

SampledThread describe(thread_act_t thread) {
  SampledThread described;
  thread_identifier_info_data_t info = {};
  mach_msg_type_number_t count = THREAD_IDENTIFIER_INFO_COUNT;
  if (::thread_info(thread, THREAD_IDENTIFIER_INFO, reinterpret_cast<thread_info_t>(&info), &count) == KERN_SUCCESS) {
    described.tid = static_cast<int64_t>(info.thread_id);
  }
  char name[64] = {};
  const pthread_t handle = ::pthread_from_mach_thread_np(thread);
  if (handle != nullptr && ::pthread_getname_np(handle, name, sizeof(name)) == 0) {
    described.name = name;
  }
  // The runner measures from its main thread, and this runs on it.
  described.main = handle != nullptr && ::pthread_equal(handle, ::pthread_self()) != 0;
  return described;
}

uint64_t ticks_of(int64_t ns) {
  mach_timebase_info_data_t base = {};
  ::mach_timebase_info(&base);
  return static_cast<uint64_t>(ns) * base.denom / base.numer;
}

}  // namespace

int64_t sample_clock_ns() { return static_cast<int64_t>(::clock_gettime_nsec_np(CLOCK_UPTIME_RAW)); }

struct Sampler::State {
  int64_t period_ns = 0;
  size_t capacity = 0;
  int64_t dropped = 0;
  int64_t missed = 0;
  std::vector<thread_act_t> handles;
  std::vector<SampledThread> threads;
  std::vector<Sample> samples;
  std::atomic<bool> active{false};
  std::thread worker;

  void take_all();
  void work();
  void end();
  ~State();
};

void Sampler::State::take_all() {
  for (size_t i = 0; i < handles.size(); ++i) {
    if (samples.size() == capacity) {
      ++dropped;
      continue;
    }
    if (const uint64_t pc = program_counter(handles[i]); pc != 0) {
      samples.push_back({sample_clock_ns(), pc, static_cast<uint32_t>(i)});
    }
  }
}

void Sampler::State::work() {
  const uint64_t period = std::max<uint64_t>(1, ticks_of(period_ns));
  uint64_t due = ::mach_absolute_time() + period;
  while (active.load()) {
    ::mach_wait_until(due);
    if (!active.load()) {
      return;
    }
    take_all();
    const uint64_t now = ::mach_absolute_time();
    const uint64_t late = now > due ? (now - due) / period : 0;
    missed += static_cast<int64_t>(late * handles.size());
    due += (late + 1) * period;
  }
}

void Sampler::State::end() {
  active.store(false);
  if (worker.joinable()) {
    worker.join();
  }
}

Sampler::State::~State() {
  end();
  for (const thread_act_t handle : handles) {
    ::mach_port_deallocate(mach_task_self(), handle);
  }
}

Sampler::Sampler(int64_t period_ns, size_t capacity, size_t least_threads) : state_(std::make_unique<State>()) {
  state_->period_ns = period_ns;
  state_->capacity = capacity;
  state_->samples.resize(capacity);  // touches the pages
  state_->samples.clear();
  thread_act_array_t found = nullptr;
  mach_msg_type_number_t count = 0;
  if (::task_threads(mach_task_self(), &found, &count) != KERN_SUCCESS || count < least_threads) {
    throw cannot_start("the threads of the process cannot all be listed");
  }
  for (mach_msg_type_number_t i = 0; i < count; ++i) {
    state_->handles.push_back(found[i]);
    state_->threads.push_back(describe(found[i]));
  }
  ::vm_deallocate(mach_task_self(), reinterpret_cast<vm_address_t>(found), count * sizeof(*found));
}

Sampler::~Sampler() = default;

void Sampler::start() {
  state_->active.store(true);
  try {
    state_->worker = std::thread([state = state_.get()] { state->work(); });
  } catch (const std::system_error& error) {
    throw cannot_start(error.what());
  }
}

Recording Sampler::stop() {
  state_->end();
  Recording recording;
  recording.period_ns = state_->period_ns;
  recording.dropped = state_->dropped;
  recording.missed = state_->missed;
  recording.threads = state_->threads;
  recording.samples = std::move(state_->samples);
  std::stable_sort(recording.samples.begin(), recording.samples.end(),
                   [](const Sample& a, const Sample& b) { return a.time_ns < b.time_ns; });
  return recording;
}

}  // namespace sme2
