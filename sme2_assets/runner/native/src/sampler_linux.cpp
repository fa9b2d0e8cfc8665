// Linux and Android: a timer per thread, each one signalling its own thread. The process-wide profiling timer
// would give a few hundred samples a second at best, and not for a thread of our choice.
#include "sampler.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include <signal.h>
#include <sys/types.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "failure.h"

// The name that POSIX timers of Linux use; older C libraries only have the member behind it.
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace sme2 {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr const char* kTasks = "/proc/self/task";
constexpr std::chrono::seconds kThreadsWait{5};
constexpr int kLagTrials = 21;

// What the signal handler sees. It may interrupt any instruction of any thread, so it allocates nothing, takes
// no lock and touches no thread-local variable: the timer tells it which thread it is.
struct Shared {
  Sample* samples = nullptr;
  size_t capacity = 0;
  uint32_t threads = 0;
  std::atomic<bool> active{false};
  std::atomic<uint32_t> handlers{0};  // running at this moment
  std::atomic<uint64_t> taken{0};     // those that found no room included
  std::atomic<int64_t> missed{0};
  std::atomic<int64_t> probe_ns{0};  // when the handler last read the clock for a signal of our own
};
Shared shared;
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

int sample_signal() { return SIGRTMIN; }

int64_t to_ns(const struct timespec& time) { return time.tv_sec * kNsPerSecond + time.tv_nsec; }

uint64_t program_counter(const ucontext_t& context) {
#if defined(__aarch64__)
  return context.uc_mcontext.pc;
#elif defined(__x86_64__)
  return static_cast<uint64_t>(context.uc_mcontext.gregs[REG_RIP]);
#else
#error "the sampler does not know where this CPU's signal context keeps the program counter"
#endif
}

void record(const siginfo_t& info, const ucontext_t& context) {
  const auto thread = static_cast<uint32_t>(info.si_value.sival_int);
  if (info.si_code != SI_TIMER || thread >= shared.threads) {
    return;
  }
  if (info.si_overrun > 0) {
    shared.missed.fetch_add(info.si_overrun, std::memory_order_relaxed);
  }
  const uint64_t slot = shared.taken.fetch_add(1, std::memory_order_relaxed);
  if (slot >= shared.capacity) {
    return;
  }
  struct timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  Sample& sample = shared.samples[slot];
  sample.time_ns = to_ns(now);
  sample.pc = program_counter(context);
  sample.thread = thread;
}

void on_sample(int, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (info->si_code == SI_TKILL) {
    struct timespec now = {};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    shared.probe_ns.store(to_ns(now));
  }
  // Counted before `active` is read, both in one order for all threads: stop() either sees this handler, or
  // this handler sees that it came too late.
  shared.handlers.fetch_add(1);
  if (shared.active.load()) {
    record(*info, *static_cast<const ucontext_t*>(context));
  }
  shared.handlers.fetch_sub(1);
  errno = saved_errno;
}

Failure cannot_start(const std::string& what, int error) {
  return Failure(ExitCode::no_sampler, "the sampler could not be started: " + what + " (" + std::strerror(error) + ")",
                 "allow POSIX timers and queued signals here (ulimit -i), or leave the kernels pass out");
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A thread that blocks the signal would never be seen. An emulator's own helpers do, and they are not ours.
bool blocks(const std::string& task, int signal) {
  std::ifstream file(task + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("SigBlk:", 0) == 0) {
      return (std::strtoull(line.c_str() + 7, nullptr, 16) >> (signal - 1) & 1) != 0;
    }
  }
  return false;
}

std::vector<SampledThread> list_threads() {
  std::vector<SampledThread> threads;
  const auto process = static_cast<int64_t>(::getpid());
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(kTasks, error)) {
    const std::string task = entry.path().string();
    const int64_t tid = std::strtoll(entry.path().filename().c_str(), nullptr, 10);
    if (tid > 0 && !blocks(task, sample_signal())) {
      threads.push_back({tid, first_line(task + "/comm"), tid == process});
    }
  }
  if (error) {
    throw cannot_start(std::string("cannot read ") + kTasks, error.value());
  }
  std::sort(threads.begin(), threads.end(), [](const auto& a, const auto& b) { return a.tid < b.tid; });
  return threads;
}

// A thread that was made a moment ago blocks every signal until it first runs, which takes a while on a busy CPU.
std::vector<SampledThread> find_threads(size_t least) {
  std::vector<SampledThread> threads = list_threads();
  const auto end = std::chrono::steady_clock::now() + kThreadsWait;
  while (threads.size() < least && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    threads = list_threads();
  }
  if (threads.size() < least) {
    throw cannot_start(
        "only " + std::to_string(threads.size()) + " of " + std::to_string(least) + " threads take signals", ETIMEDOUT);
  }
  return threads;
}

void take_signal() {
  struct sigaction wanted = {};
  ::sigemptyset(&wanted.sa_mask);
  wanted.sa_sigaction = &on_sample;
  wanted.sa_flags = SA_SIGINFO | SA_RESTART;
  if (::sigaction(sample_signal(), &wanted, nullptr) != 0) {
    throw cannot_start("its signal could not be taken", errno);
  }
}

}  // namespace

int64_t sample_clock_ns() {
  struct timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return to_ns(now);
}

namespace {

// From the signal to the handler's clock, as a thread that signals itself sees it. Under an emulator that takes
// so long that the next operator may have begun by then.
int64_t measured_lag_ns() {
  std::vector<int64_t> lags;
  for (int trial = 0; trial < kLagTrials; ++trial) {
    shared.probe_ns.store(0);
    const int64_t sent = sample_clock_ns();
    ::raise(sample_signal());
    const int64_t seen = shared.probe_ns.load();
    if (seen > sent) {
      lags.push_back(seen - sent);
    }
  }
  if (lags.empty()) {
    return 0;
  }
  std::nth_element(lags.begin(), lags.begin() + lags.size() / 2, lags.end());
  return lags[lags.size() / 2];
}

}  // namespace

struct Sampler::State {
  int64_t period_ns = 0;
  int64_t lag_ns = 0;
  std::vector<SampledThread> threads;
  std::vector<Sample> samples;
  std::vector<timer_t> timers;

  void add_timer(size_t thread);
  void end();
};

void Sampler::State::add_timer(size_t thread) {
  struct sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = sample_signal();
  event.sigev_value.sival_int = static_cast<int>(thread);
  event.sigev_notify_thread_id = static_cast<pid_t>(threads[thread].tid);
  timer_t timer = {};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) {
    throw cannot_start("no timer for thread " + std::to_string(threads[thread].tid), errno);
  }
  timers.push_back(timer);
  struct itimerspec times = {};
  times.it_interval.tv_sec = period_ns / kNsPerSecond;
  times.it_interval.tv_nsec = period_ns % kNsPerSecond;
  times.it_value = times.it_interval;
  if (::timer_settime(timer, 0, &times, nullptr) != 0) {
    throw cannot_start("a timer of " + std::to_string(period_ns) + " ns could not be set", errno);
  }
}

void Sampler::State::end() {
  shared.active.store(false);
  for (const timer_t timer : timers) {
    ::timer_delete(timer);
  }
  timers.clear();
  // A signal may still be on its way, and its default action would end the process.
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(sample_signal(), &ignore, nullptr);
  while (shared.handlers.load() != 0) {
    std::this_thread::yield();
  }
}

Sampler::Sampler(int64_t period_ns, size_t capacity, size_t least_threads) : state_(std::make_unique<State>()) {
  state_->period_ns = period_ns;
  state_->threads = find_threads(least_threads);
  // Written to here: the first touch of a page would cost time in the middle of an inference.
  state_->samples.resize(capacity);
  state_->timers.reserve(state_->threads.size());
}

Sampler::~Sampler() { state_->end(); }

void Sampler::start() {
  shared.samples = state_->samples.data();
  shared.capacity = state_->samples.size();
  shared.threads = static_cast<uint32_t>(state_->threads.size());
  shared.taken.store(0);
  shared.missed.store(0);
  take_signal();
  state_->lag_ns = measured_lag_ns();
  shared.active.store(true);
  for (size_t i = 0; i < state_->threads.size(); ++i) {
    state_->add_timer(i);
  }
}

Recording Sampler::stop() {
  state_->end();
  const uint64_t taken = shared.taken.load();
  const uint64_t kept = std::min<uint64_t>(taken, state_->samples.size());
  Recording recording;
  recording.period_ns = state_->period_ns;
  recording.dropped = static_cast<int64_t>(taken - kept);
  recording.missed = shared.missed.load();
  recording.lag_ns = state_->lag_ns;
  recording.threads = std::move(state_->threads);
  recording.samples.assign(state_->samples.begin(), state_->samples.begin() + static_cast<ptrdiff_t>(kept));
  std::stable_sort(recording.samples.begin(), recording.samples.end(),
                   [](const Sample& a, const Sample& b) { return a.time_ns < b.time_ns; });
  return recording;
}

}  // namespace sme2
