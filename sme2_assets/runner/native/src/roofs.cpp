#include "roofs.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <vector>

#include "json.h"
#include "thread_pool.h"

namespace sme2 {
namespace {

using Lanes = float __attribute__((vector_size(16)));

constexpr size_t kBufferBytes = size_t{128} << 20;
// In vectors: 64 KiB. A thousand threads still have a piece each.
constexpr size_t kPiece = size_t{4} << 10;
// Of each measurement, the best of several: whatever disturbs one only makes it slower. They are shorter than the
// time that a scheduler gives to another process.
constexpr int kRepetitions = 30;
constexpr double kWindowS = 0.004;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The compiler must take the value for changed, and as needed.
void keep(Lanes& value) {
#if defined(__aarch64__)
  asm volatile("" : "+w"(value));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

// Sixteen independent sums, as in a kernel of a matrix product: enough to hide how long one addition takes.
double flops_of_block() {
  constexpr int kSide = 4, kRounds = 2000;
  Lanes sums[kSide][kSide] = {};
  Lanes rows[kSide], columns[kSide];
  for (int i = 0; i < kSide; ++i) {
    rows[i] = Lanes{} + 1e-3f * static_cast<float>(i + 1);
    columns[i] = rows[i] + 1.0f;
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Lanes& row : rows) {
      keep(row);
    }
    for (int i = 0; i < kSide; ++i) {
      for (int j = 0; j < kSide; ++j) {
        sums[i][j] += rows[i] * columns[j];
      }
    }
  }
  for (auto& row : sums) {
    for (Lanes& sum : row) {
      keep(sum);
    }
  }
  return 2.0 * sizeof(Lanes) / sizeof(float) * kSide * kSide * kRounds;
}

double bytes_of_read(const Lanes* begin, const Lanes* end) {
  constexpr int kStreams = 8;
  Lanes sums[kStreams] = {};
  for (const Lanes* at = begin; at + kStreams <= end; at += kStreams) {
    for (int i = 0; i < kStreams; ++i) {
      sums[i] += at[i];
    }
  }
  for (Lanes& sum : sums) {
    keep(sum);
  }
  return static_cast<double>(end - begin) * sizeof(Lanes);
}

struct Worked {
  double started, ended, done;
};

// Work per second of all threads together; `work` does some and says how much. It is divided by the time from the
// first thread's start to the last one's end: with more threads than CPUs, each works only part of that time.
double rate(uint32_t threads, const std::function<double(uint32_t thread)>& work) {
  double best = 0;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    std::atomic<uint32_t> arrived{0};
    std::vector<Worked> stretches(threads);
    on_every_thread(threads, [&] {
      const uint32_t thread = arrived++;
      Worked own{seconds(), 0, 0};
      do {
        own.done += work(thread);
        own.ended = seconds();
      } while (own.ended - own.started < kWindowS);
      stretches[thread] = own;
    });
    Worked all = stretches.front();
    for (size_t i = 1; i < stretches.size(); ++i) {
      all.started = std::min(all.started, stretches[i].started);
      all.ended = std::max(all.ended, stretches[i].ended);
      all.done += stretches[i].done;
    }
    best = std::max(best, all.done / (all.ended - all.started));
  }
  return best;
}

}  // namespace

std::string roofs_json(uint32_t threads) {
  // Not zeros of fresh pages: those are all one page of memory.
  const std::vector<Lanes> buffer(kBufferBytes / sizeof(Lanes), Lanes{} + 1.0f);
  JsonWriter json;
  json.begin_object().key("schema").number(1).key("roofs").begin_array();
  for (const uint32_t used : threads > 1 ? std::vector<uint32_t>{1, threads} : std::vector<uint32_t>{1}) {
    const size_t share = buffer.size() / used;
    const double flops = rate(used, [](uint32_t) { return flops_of_block(); });
    // Each thread reads on where it stopped, so that nothing is in a cache when it is read again.
    std::vector<size_t> next(used);
    const double bytes = rate(used, [&](uint32_t thread) {
      const Lanes* begin = buffer.data() + thread * share + next[thread];
      next[thread] += kPiece;
      if (next[thread] + kPiece > share) {
        next[thread] = 0;
      }
      return bytes_of_read(begin, begin + kPiece);
    });
    json.begin_object().key("threads").number(used);
    json.key("fp32_gflops").decimal(flops / 1e9).key("read_gb_s").decimal(bytes / 1e9).end_object();
  }
  json.end_array().end_object();
  return json.str() + "\n";
}

}  // namespace sme2
