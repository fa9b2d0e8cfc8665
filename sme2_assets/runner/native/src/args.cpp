#include "args.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <set>

#include "failure.h"

namespace sme2 {
namespace {

constexpr uint32_t kMostInferences = 10'000'000;
// Bounds the result file, and the trace of a traced pass.
constexpr uint32_t kDefaultIterationsCap = 5000;
constexpr uint32_t kMostMs = 3'600'000;
constexpr uint32_t kMostThreads = 1024;
constexpr double kMostSlowdownPercent = 1000;
constexpr uint32_t kLeastSamplePeriodUs = 50;
constexpr uint32_t kMostSamplePeriodUs = 1'000'000;
constexpr uint32_t kMostSamples = 10'000'000;
constexpr uint32_t kMostCpu = 1023;
constexpr uint32_t kMostSteps = 1000;

Failure usage_error(const std::string& what) { return Failure(ExitCode::usage, what, "see sme2_runner --help"); }

uint32_t parse_count(const std::string& flag, const std::string& text, uint32_t least, uint32_t most) {
  uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most) {
    throw usage_error(flag + " wants a whole number from " + std::to_string(least) + " to " + std::to_string(most) +
                      ", got '" + text + "'");
  }
  return value;
}

double parse_percent(const std::string& flag, const std::string& text, double most) {
  // Plain decimals only: strtod alone would take hexadecimal, infinity and NaN. Not every standard library
  // has std::from_chars for double yet.
  const bool plain = text.find_first_not_of("0123456789.") == std::string::npos;
  char* stop = nullptr;
  const double value = plain ? std::strtod(text.c_str(), &stop) : 0;
  if (!plain || stop == text.c_str() || *stop != '\0' || value > most) {
    throw usage_error(flag + " wants a number from 0 to " + std::to_string(static_cast<int>(most)) + ", got '" + text +
                      "'");
  }
  return value;
}

// "0-3,7" as ascending numbers.
std::vector<int64_t> parse_cpus(const std::string& flag, const std::string& text) {
  std::set<int64_t> cpus;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const size_t dash = part.find('-');
    const uint32_t first = parse_count(flag, part.substr(0, dash), 0, kMostCpu);
    const uint32_t last = dash == std::string::npos ? first : parse_count(flag, part.substr(dash + 1), first, kMostCpu);
    for (uint32_t cpu = first; cpu <= last; ++cpu) {
      cpus.insert(cpu);
    }
    begin = end + 1;
  }
  return {cpus.begin(), cpus.end()};
}

std::string parse_qos(const std::string& text) {
  for (const char* name : {"user-interactive", "user-initiated", "utility", "background"}) {
    if (text == name) {
      return text;
    }
  }
  throw usage_error("--qos wants user-interactive, user-initiated, utility or background, got '" + text + "'");
}

Pass parse_pass(const std::string& text) {
  if (text == "latency") {
    return Pass::latency;
  }
  if (text == "etdump") {
    return Pass::etdump;
  }
  if (text == "kernels") {
    return Pass::kernels;
  }
  if (text == "work") {
    return Pass::work;
  }
  throw usage_error("--pass wants latency, etdump, kernels or work, got '" + text + "'");
}

using Setter = void (*)(Options& options, const std::string& flag, const std::string& value);

// Every flag that takes a value, and where the value goes.
const std::map<std::string, Setter> kValueFlags = {
    {"--model", [](Options& o, const std::string&, const std::string& v) { o.model = v; }},
    {"--input", [](Options& o, const std::string&, const std::string& v) { o.inputs.push_back(v); }},
    {"--pass", [](Options& o, const std::string&, const std::string& v) { o.pass = parse_pass(v); }},
    {"--result", [](Options& o, const std::string&, const std::string& v) { o.result = v; }},
    {"--outputs", [](Options& o, const std::string&, const std::string& v) { o.outputs = v; }},
    {"--etdump", [](Options& o, const std::string&, const std::string& v) { o.etdump = v; }},
    {"--samples", [](Options& o, const std::string&, const std::string& v) { o.samples = v; }},
    {"--modules", [](Options& o, const std::string&, const std::string& v) { o.modules = v; }},
    {"--method", [](Options& o, const std::string&, const std::string& v) { o.method = v; }},
    {"--data", [](Options& o, const std::string&, const std::string& v) { o.data = v; }},
    {"--op-library", [](Options& o, const std::string&, const std::string& v) { o.op_libraries.push_back(v); }},
    {"--steps",
     [](Options& o, const std::string& f, const std::string& v) { o.steps = parse_count(f, v, 1, kMostSteps); }},
    {"--roofs", [](Options& o, const std::string&, const std::string& v) { o.roofs = v; }},
    {"--qos", [](Options& o, const std::string&, const std::string& v) { o.qos = parse_qos(v); }},
    {"--cpus", [](Options& o, const std::string& f, const std::string& v) { o.cpus = parse_cpus(f, v); }},
    {"--warmup",
     [](Options& o, const std::string& f, const std::string& v) { o.warmup = parse_count(f, v, 0, kMostInferences); }},
    {"--warmup-ms",
     [](Options& o, const std::string& f, const std::string& v) { o.warmup_ms = parse_count(f, v, 0, kMostMs); }},
    {"--iterations", [](Options& o, const std::string& f,
                        const std::string& v) { o.iterations = parse_count(f, v, 1, kMostInferences); }},
    {"--iterations-cap", [](Options& o, const std::string& f,
                            const std::string& v) { o.iterations_cap = parse_count(f, v, 1, kMostInferences); }},
    {"--timed-ms",
     [](Options& o, const std::string& f, const std::string& v) { o.timed_ms = parse_count(f, v, 0, kMostMs); }},
    {"--threads",
     [](Options& o, const std::string& f, const std::string& v) { o.threads = parse_count(f, v, 1, kMostThreads); }},
    {"--slowdown-percent",
     [](Options& o, const std::string& f, const std::string& v) {
       o.slowdown_percent = parse_percent(f, v, kMostSlowdownPercent);
     }},
    {"--sample-period-us",
     [](Options& o, const std::string& f, const std::string& v) {
       o.sample_period_us = parse_count(f, v, kLeastSamplePeriodUs, kMostSamplePeriodUs);
     }},
    {"--sample-capacity", [](Options& o, const std::string& f,
                             const std::string& v) { o.sample_capacity = parse_count(f, v, 1, kMostSamples); }},
};

// Flag and value pairs in the order given. Accepts `--flag value` and `--flag=value`.
std::vector<std::pair<std::string, std::string>> split_flags(const std::vector<std::string>& words) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.rfind("--", 0) == 0 ? word.find('=') : std::string::npos;
    const std::string flag = word.substr(0, equals);
    if (kValueFlags.count(flag) == 0) {
      throw usage_error(flag.rfind("-", 0) == 0 ? "unknown flag " + flag : "unexpected argument '" + word + "'");
    }
    std::string value;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < words.size() && words[i + 1].rfind("--", 0) != 0) {
      value = words[++i];
    }
    if (value.empty()) {
      throw usage_error(flag + " has no value");
    }
    pairs.emplace_back(flag, value);
  }
  return pairs;
}

// Which files and settings belong to which pass.
void check_pass(const Options& options, const std::set<std::string>& given) {
  const std::string pass = std::string("--pass ") + pass_name(options.pass);
  if (options.pass != Pass::latency && options.etdump.empty()) {
    throw usage_error(pass + " also wants --etdump FILE");
  }
  if (options.pass == Pass::latency && !options.etdump.empty()) {
    throw usage_error("--etdump belongs to the other passes: the latency pass runs without a tracer");
  }
  if (options.pass == Pass::kernels && options.samples.empty()) {
    throw usage_error(pass + " also wants --samples FILE");
  }
  if ((options.pass == Pass::work) != !options.modules.empty()) {
    throw usage_error("--modules belongs to --pass work, which wants it");
  }
  for (const char* flag : {"--samples", "--sample-period-us", "--sample-capacity"}) {
    if (options.pass != Pass::kernels && given.count(flag) != 0) {
      throw usage_error(std::string(flag) + " belongs to --pass kernels: the other passes run without a sampler");
    }
  }
}

// Which flags make sense without a program.
void check_roofs(const std::set<std::string>& given) {
  if (given.count("--threads") == 0) {
    throw usage_error("--roofs also wants --threads T");
  }
  for (const std::string& flag : given) {
    if (flag != "--roofs" && flag != "--threads" && flag != "--cpus" && flag != "--qos") {
      throw usage_error(flag + " is for running a program, --roofs runs none");
    }
  }
}

// The flags that stand alone: they print something and exit.
bool parse_informative(const std::vector<std::string>& words, Options& options) {
  static const std::map<std::string, Action> actions = {
      {"--help", Action::help}, {"-h", Action::help}, {"--version", Action::version}, {"--cpu", Action::cpu}};
  for (const std::string& word : words) {
    const auto found = actions.find(word);
    if (found == actions.end()) {
      continue;
    }
    if (words.size() > 1) {
      throw usage_error(word + " stands alone, other flags were given beside it");
    }
    options.action = found->second;
    return true;
  }
  return false;
}

}  // namespace

Options parse_args(int argc, char** argv) {
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  Options options;
  if (parse_informative(words, options)) {
    return options;
  }
  std::set<std::string> seen;
  for (const auto& [flag, value] : split_flags(words)) {
    if (!seen.insert(flag).second && flag != "--input" && flag != "--op-library") {
      throw usage_error(flag + " is given twice");
    }
    kValueFlags.at(flag)(options, flag, value);
  }
  if (seen.count("--roofs") != 0) {
    check_roofs(seen);
    options.action = Action::roofs;
    return options;
  }
  for (const char* flag : {"--model", "--pass", "--warmup", "--iterations", "--threads", "--result", "--outputs"}) {
    if (seen.count(flag) == 0) {
      throw usage_error(std::string(flag) + " is missing");
    }
  }
  if (seen.count("--iterations-cap") == 0) {
    options.iterations_cap = std::max(options.iterations, kDefaultIterationsCap);
  }
  if (options.iterations_cap < options.iterations) {
    throw usage_error("--iterations-cap " + std::to_string(options.iterations_cap) + " is below --iterations " +
                      std::to_string(options.iterations));
  }
  check_pass(options, seen);
  return options;
}

const char* pass_name(Pass pass) {
  switch (pass) {
    case Pass::latency:
      return "latency";
    case Pass::etdump:
      return "etdump";
    case Pass::kernels:
      return "kernels";
    case Pass::work:
      return "work";
  }
  return "";
}

const char* help_text() {
  return R"(sme2_runner: run an ExecuTorch program and measure its inferences

  sme2_runner --model M.pte --input 0.npy [--input 1.npy ...] --pass latency|etdump|kernels|work
              --warmup W [--warmup-ms T] --iterations N [--timed-ms D] [--iterations-cap C] --threads T
              --result result.json --outputs DIR [--etdump trace.etdump] [--method forward]
              [--samples samples.json] [--sample-period-us U] [--sample-capacity S] [--modules modules.txt]
              [--slowdown-percent P]
              [--data M.ptd] [--op-library L.so ...] [--steps S] [--cpus 0-3,7] [--qos CLASS]
  sme2_runner --roofs roofs.json --threads T [--cpus 0-3,7] [--qos CLASS]
  sme2_runner --help | --version | --cpu

  --model FILE       the program (.pte)
  --input FILE       one per input of the method, in order: NumPy .npy, C order, little endian
  --pass KIND        latency: no tracer attached; etdump: with ExecuTorch's event tracer;
                     kernels: with the tracer, and the program counter of every thread sampled;
                     work: with the tracer, and no-ops that mark its events for a counter of instructions
  --warmup W         inferences before the measured ones (0 or more)
  --warmup-ms T      go on warming up after W until T milliseconds have passed; the result then tells whether
                     the warm-up ended steady: the medians of its last two quarters, of 5 inferences at
                     least, differed by at most 2 % (0 unless told: W inferences and no more)
  --iterations N     measured inferences (1 or more)
  --timed-ms D       go on measuring after N until D milliseconds have passed (0 unless told)
  --iterations-cap C
                     but for at most C inferences (5000, or N if that is more, unless told)
  --threads T        threads of the ExecuTorch thread pool (1 or more)
  --result FILE      one JSON object, written last: a failed run leaves none
  --outputs DIR      receives output_<i>.npy of the last inference; created when missing
  --etdump FILE      receives the trace of any pass but latency (measured inferences only)
  --samples FILE     receives the samples of the kernels pass, as JSON (measured inferences only); functions
                     have no names in it yet: these are found in the files of the modules it lists
  --sample-period-us U
                     time between two samples of a thread (50 to 1000000, 500 unless told)
  --sample-capacity S
                     samples kept, of all threads (1 to 10000000, 200000 unless told); more are counted
                     and dropped
  --modules FILE     receives, before the first measured inference of the work pass, the address of
                     clock_gettime, and where which file is mapped
  --method NAME      method of the program, 'forward' unless told
  --data FILE        weights of the program that are in a file of their own (.ptd)
  --op-library FILE  a library with kernels that the program calls; loaded before the program, may be repeated
  --steps S          for a program with state: S inferences run from its initial state first, and the outputs
                     of all of them are written, one step after the other; from then on the state is set back
                     after every S inferences, between them (1 unless told: the outputs are the last
                     inference's, and the state goes on)
  --cpus LIST        CPUs on which all threads of the run stay, e.g. 0-3,7 (Linux and Android)
  --qos CLASS        quality of service of all threads: user-interactive, user-initiated, utility or
                     background (macOS)
  --slowdown-percent P
                     only to test what finds slow-downs: after each inference busy-wait P % of its time
                     and count that in (0 to 1000, 0 unless told); the trace is not slowed
  --roofs FILE       run no program; measure what plain code reaches here with 1 and with T threads: 32-bit
                     multiply-accumulates of 128-bit vectors, and reading 128 MiB. It is no limit of the SME unit
  --cpu              print what the CPU offers, and what is masked, as JSON

Environment: SME2_RUNNER_SME2=off hides SME and SME2 from the kernels (on unless told).
Exit codes: 0 ok, 2 usage, 3 model, 4 input, 5 inference failed, 6 NaN or infinity in an output,
            7 cannot write, 8 the tracer gave no data, 9 the sampler could not be started.
)";
}

}  // namespace sme2
