#include "args.h"

#include <algorithm>
#include <random>

#include "check.h"

namespace {

using sme2::ExitCode;
using sme2::Options;

Options parse(std::vector<std::string> words) {
  words.insert(words.begin(), "sme2_runner");
  std::vector<char*> pointers;
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  return sme2::parse_args(static_cast<int>(pointers.size()), pointers.data());
}

const std::vector<std::string> kWhole = {"--model",  "m.pte",        "--pass",    "latency",   "--warmup",
                                         "1",        "--iterations", "2",         "--threads", "3",
                                         "--result", "r.json",       "--outputs", "out"};

Options with(const std::vector<std::string>& more) {
  std::vector<std::string> words = kWhole;
  words.insert(words.end(), more.begin(), more.end());
  return parse(words);
}

}  // namespace

TEST(flags_are_read_in_both_forms) {
  const Options options = with({"--input=0.npy", "--input", "1.npy", "--method=go", "--cpus", "0-2,7,1"});
  CHECK(options.threads == 3);
  CHECK((options.inputs == std::vector<std::string>{"0.npy", "1.npy"}));
  CHECK(options.method == "go");
  CHECK((options.cpus == std::vector<int64_t>{0, 1, 2, 7}));
  CHECK(options.warmup_ms == 0);
  CHECK(options.timed_ms == 0);
  CHECK(options.iterations_cap == 5000);
  CHECK(with({"--iterations-cap", "2"}).iterations_cap == 2);
  CHECK_FAILS(ExitCode::usage, "--iterations-cap 1 is below --iterations 2", with({"--iterations-cap", "1"}));
}

TEST(roofs_are_measured_without_a_program) {
  const Options options = parse({"--roofs", "r.json", "--threads", "2", "--cpus=0"});
  CHECK(options.action == sme2::Action::roofs);
  CHECK(options.roofs == "r.json");
  CHECK_FAILS(ExitCode::usage, "--roofs also wants --threads", parse({"--roofs", "r.json"}));
  CHECK_FAILS(ExitCode::usage, "is for running a program", with({"--roofs", "r.json"}));
}

TEST(each_missing_flag_is_named) {
  for (size_t i = 0; i < kWhole.size(); i += 2) {
    std::vector<std::string> words = kWhole;
    words.erase(words.begin() + static_cast<ptrdiff_t>(i), words.begin() + static_cast<ptrdiff_t>(i) + 2);
    CHECK_FAILS(ExitCode::usage, kWhole[i] + " is missing", parse(words));
  }
}

TEST(numbers_out_of_range_are_refused) {
  for (const char* bad : {"", "-1", "+1", "1e3", "0x10", "99999999999999999999", "1 ", " 1", "1,2", "\xff"}) {
    CHECK_FAILS(ExitCode::usage, "--warmup-ms", with({"--warmup-ms", bad}));
    CHECK_FAILS(ExitCode::usage, "--timed-ms", with({"--timed-ms", bad}));
    CHECK_FAILS(ExitCode::usage, "--iterations-cap", with({"--iterations-cap", bad}));
  }
  for (const char* bad : {"-1", "nan", "inf", "0x1", "1e2", "1001", ".", "1..2", ""}) {
    CHECK_FAILS(ExitCode::usage, "--slowdown-percent", with({"--slowdown-percent", bad}));
  }
  for (const char* bad : {"", ",", "1,", ",1", "3-1", "1-", "-", "1-2-3", "1024", "a", "0-99999999999"}) {
    CHECK_FAILS(ExitCode::usage, "--cpus", with({"--cpus", bad}));
  }
}

TEST(flags_of_another_pass_are_refused) {
  CHECK_FAILS(ExitCode::usage, "--etdump belongs", with({"--etdump", "t"}));
  CHECK_FAILS(ExitCode::usage, "--samples belongs", with({"--samples", "s"}));
  CHECK_FAILS(ExitCode::usage, "--modules belongs", with({"--modules", "m"}));
  CHECK_FAILS(ExitCode::usage, "given twice", with({"--threads", "1"}));
  CHECK_FAILS(ExitCode::usage, "stands alone", with({"--help"}));
  CHECK_FAILS(ExitCode::usage, "unknown flag", with({"--odd", "1"}));
  CHECK_FAILS(ExitCode::usage, "unexpected argument", with({"odd"}));
}

TEST(any_words_are_options_or_a_failure_of_usage) {
  std::mt19937 draw(7);
  const std::vector<std::string> more = {
      "--help", "--cpu", "=",     "--",      "-",       "--input",   "--=",      "--model=", "1",        "\xf0\x9f",
      "--cpus", "0-1",   "--qos", "utility", "kernels", "--samples", "--etdump", "work",     "--modules"};
  for (int trial = 0; trial < 1000; ++trial) {
    std::vector<std::string> words = kWhole;
    for (int i = static_cast<int>(draw() % 4); i >= 0; --i) {
      const std::string& word = draw() % 2 == 0 ? more[draw() % more.size()] : kWhole[draw() % kWhole.size()];
      words.insert(words.begin() + static_cast<ptrdiff_t>(draw() % (words.size() + 1)), word);
    }
    try {
      parse(words);
    } catch (const sme2::Failure& failure) {
      CHECK(failure.code() == ExitCode::usage);
    }
  }
  CHECK_FAILS(ExitCode::usage, "is missing", sme2::parse_args(0, nullptr));
}
