// Runs every test, prints one line for each and says how many failed. Names of tests as arguments select.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "check.h"

namespace sme2::tests {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "sme2-tests-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw std::runtime_error("no temporary folder");
  }
  folder_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

std::string TemporaryFolder::file(const std::string& name, const std::string& content) const {
  std::ofstream out(path(name), std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  return path(name);
}

}  // namespace sme2::tests

int main(int argc, char** argv) {
  int failed = 0;
  for (const auto& test : sme2::tests::all_tests()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) {
      wanted = wanted || std::strcmp(argv[i], test.name) == 0;
    }
    if (!wanted) {
      continue;
    }
    try {
      test.run();
      std::printf("ok      %s\n", test.name);
    } catch (const std::exception& error) {
      std::printf("FAILED  %s: %s\n", test.name, error.what());
      ++failed;
    }
  }
  return failed == 0 ? 0 : 1;
}
