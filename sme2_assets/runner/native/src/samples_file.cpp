#include "samples_file.h"

#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>

#include <executorch/runtime/platform/platform.h>

#include "functions.h"
#include "json.h"

namespace sme2 {
namespace {

constexpr int kClockReadings = 32;

struct Place {
  int64_t function = 0;  // index in functions()
  uint64_t address = 0;
  std::optional<uint32_t> word;
};

// Every distinct address once: a hot loop gives the same few many thousand times.
class Places {
 public:
  explicit Places(const std::vector<Sample>& samples) {
    for (const Sample& sample : samples) {
      if (places_.count(sample.pc) == 0) {
        places_.emplace(sample.pc, make(sample.pc));
      }
    }
  }

  const Place& at(uint64_t pc) const { return places_.at(pc); }
  const std::vector<Function>& functions() const { return functions_; }

 private:
  Place make(uint64_t pc) {
    const Location location = names_.locate(pc);
    const Function& function = location.function;
    const auto [found, is_new] = index_.emplace(std::make_tuple(function.library, function.offset, function.symbol),
                                                static_cast<int64_t>(functions_.size()));
    if (is_new) {
      functions_.push_back(function);
    }
    return {found->second, location.address, location.word};
  }

  Functions names_;
  std::unordered_map<uint64_t, Place> places_;
  std::map<std::tuple<std::optional<std::string>, uint64_t, std::optional<std::string>>, int64_t> index_;
  std::vector<Function> functions_;
};

void write_text(JsonWriter& json, const std::optional<std::string>& value) {
  if (value) {
    json.text(*value);
  } else {
    json.null();
  }
}

void write_threads(JsonWriter& json, const std::vector<SampledThread>& threads) {
  json.begin_array();
  for (const SampledThread& thread : threads) {
    json.begin_object();
    json.key("tid").number(thread.tid);
    json.key("name").text(thread.name);
    json.key("main").boolean(thread.main);
    json.end_object();
  }
  json.end_array();
}

void write_functions(JsonWriter& json, const std::vector<Function>& functions) {
  json.begin_array();
  for (const Function& function : functions) {
    json.begin_object();
    json.key("library");
    write_text(json, function.library);
    json.key("offset").number(static_cast<int64_t>(function.offset));
    json.key("symbol");
    write_text(json, function.symbol);
    json.end_object();
  }
  json.end_array();
}

template <typename Column>
void write_column(JsonWriter& json, const char* name, const std::vector<Sample>& samples, Column column) {
  json.key(name).begin_array();
  for (const Sample& sample : samples) {
    column(sample);
  }
  json.end_array();
}

void write_samples(JsonWriter& json, const std::vector<Sample>& samples, const Places& places) {
  json.begin_object();
  write_column(json, "time_ns", samples, [&](const Sample& s) { json.number(s.time_ns); });
  write_column(json, "thread", samples, [&](const Sample& s) { json.number(s.thread); });
  write_column(json, "function", samples, [&](const Sample& s) { json.number(places.at(s.pc).function); });
  write_column(json, "address", samples, [&](const Sample& s) {
    json.number(static_cast<int64_t>(places.at(s.pc).address));
  });
  write_column(json, "word", samples, [&](const Sample& s) {
    const auto& word = places.at(s.pc).word;
    if (word) {
      json.number(*word);
    } else {
      json.null();
    }
  });
  json.end_object();
}

}  // namespace

ClockPair read_clocks() {
  namespace rt = executorch::runtime;
  // Of several readings the one during which the least time went by: the others were interrupted.
  ClockPair best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kClockReadings; ++i) {
    const int64_t before = sample_clock_ns();
    const uint64_t ticks = rt::pal_current_ticks();
    const int64_t between = sample_clock_ns() - before;
    if (between < least) {
      least = between;
      const et_tick_ratio_t ratio = rt::pal_ticks_to_ns_multiplier();
      best = {static_cast<int64_t>(ticks * ratio.numerator / ratio.denominator), before + between / 2};
    }
  }
  return best;
}

std::string samples_json(const std::string& arch, const Recording& recording, const ClockPair& clocks) {
  const Places places(recording.samples);
  JsonWriter json;
  json.begin_object();
  json.key("schema").number(1);
  json.key("arch").text(arch);
  json.key("period_ns").number(recording.period_ns);
  json.key("dropped").number(recording.dropped);
  json.key("missed").number(recording.missed);
  json.key("clock").begin_object();
  json.key("trace_ns").number(clocks.trace_ns);
  json.key("monotonic_ns").number(clocks.monotonic_ns);
  json.key("lag_ns").number(recording.lag_ns);
  json.end_object();
  json.key("threads");
  write_threads(json, recording.threads);
  json.key("functions");
  write_functions(json, places.functions());
  json.key("samples");
  write_samples(json, recording.samples, places);
  json.end_object();
  return json.str() + "\n";
}

}  // namespace sme2
