// As much of a test framework as these tests take. TEST(a_sentence) { CHECK(...); } registers itself; main.cpp runs
// all.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "failure.h"

namespace sme2::tests {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, void (*run)()) { all_tests().push_back({name, run}); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

// The failure that `act` ends in: its code, and `part` somewhere in its message.
inline void check_fails(const char* file, int line, ExitCode code, const std::string& part,
                        const std::function<void()>& act) {
  try {
    act();
  } catch (const Failure& failure) {
    if (failure.code() != code || std::string(failure.what()).find(part) == std::string::npos) {
      fail(file, line, "another failure: " + std::string(failure.what()));
    }
    return;
  }
  fail(file, line, "it did not fail");
}

// A folder of its own for files, gone with it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name, const std::string& content) const;
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

}  // namespace sme2::tests

#define TEST(name)                                                       \
  static void name();                                                    \
  static const sme2::tests::Registration registered_##name(#name, name); \
  static void name()
#define CHECK(condition)                                            \
  do {                                                              \
    if (!(condition))                                               \
      sme2::tests::fail(__FILE__, __LINE__, "not so: " #condition); \
  } while (false)
#define CHECK_FAILS(code, part, expression) \
  sme2::tests::check_fails(__FILE__, __LINE__, code, part, [&] { (void)(expression); })
