#include "recording_file.h"

#include <limits>
#include <unordered_map>

#include <executorch/runtime/platform/platform.h>

#include "json.h"
#include "modules.h"

namespace sme2 {
namespace {

constexpr int kClockReadings = 32;

// Every distinct address once: a hot loop gives the same few many thousand times.
class Places {
 public:
  explicit Places(const std::vector<Sample>& samples) : modules_(loaded_modules()) {
    for (const Sample& sample : samples) {
      if (index_.emplace(sample.pc, places_.size()).second) {
        places_.push_back(place_of(modules_, sample.pc));
      }
    }
  }

  const std::vector<Module>& modules() const { return modules_; }
  const std::vector<Place>& places() const { return places_; }
  int64_t index(uint64_t pc) const { return static_cast<int64_t>(index_.at(pc)); }

 private:
  std::vector<Module> modules_;
  std::vector<Place> places_;
  std::unordered_map<uint64_t, size_t> index_;
};

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

void write_modules(JsonWriter& json, const std::vector<Module>& modules) {
  json.begin_array();
  for (const Module& module : modules) {
    json.begin_object();
    json.key("path").text(module.path);
    json.key("build_id").maybe(module.build_id);
    json.key("image").maybe(module.image);
    json.end_object();
  }
  json.end_array();
}

// One array with an entry for each of `rows`.
template <typename Rows, typename Entry>
void write_column(JsonWriter& json, const char* name, const Rows& rows, Entry entry) {
  json.key(name).begin_array();
  for (const auto& row : rows) {
    entry(row);
  }
  json.end_array();
}

void write_places(JsonWriter& json, const std::vector<Place>& places) {
  json.begin_object();
  write_column(json, "module", places, [&](const Place& place) { json.maybe(place.module); });
  write_column(json, "address", places, [&](const Place& p) { json.number(static_cast<int64_t>(p.address)); });
  write_column(json, "word", places, [&](const Place& place) { json.maybe(place.word); });
  json.end_object();
}

void write_samples(JsonWriter& json, const std::vector<Sample>& samples, const Places& places) {
  json.begin_object();
  write_column(json, "time_ns", samples, [&](const Sample& sample) { json.number(sample.time_ns); });
  write_column(json, "thread", samples, [&](const Sample& sample) { json.number(sample.thread); });
  write_column(json, "place", samples, [&](const Sample& sample) { json.number(places.index(sample.pc)); });
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

std::string recording_json(const std::string& arch, const Recording& recording, const ClockPair& clocks) {
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
  json.key("modules");
  write_modules(json, places.modules());
  json.key("places");
  write_places(json, places.places());
  json.key("samples");
  write_samples(json, recording.samples, places);
  json.end_object();
  return json.str() + "\n";
}

}  // namespace sme2
