#include "files.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "check.h"

using sme2::ExitCode;
using sme2::tests::TemporaryFolder;

TEST(a_file_is_written_whole_and_leaves_nothing_beside_it) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.json", "old");
  sme2::write_file(path, "new text", 8);
  std::ifstream in(path);
  CHECK((std::string(std::istreambuf_iterator<char>(in), {}) == "new text"));
  const auto entries = std::filesystem::directory_iterator(folder.path(""));
  CHECK(std::distance(begin(entries), end(entries)) == 1);
}

TEST(what_cannot_be_written_is_told) {
  const TemporaryFolder folder;
  CHECK_FAILS(ExitCode::cannot_write, "cannot write", sme2::write_file(folder.path("no/such/file"), "x", 1));
  CHECK_FAILS(ExitCode::cannot_write, "directory", sme2::remove_stale_file(folder.path("")));
  CHECK_FAILS(ExitCode::cannot_write, "cannot write", sme2::check_writable(folder.path("no/file")));
  CHECK_FAILS(ExitCode::cannot_write, "cannot write", sme2::make_directory(folder.file("plain", "x")));
}

TEST(one_file_by_two_names_is_found_out) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a", "x");
  std::filesystem::create_hard_link(path, folder.path("b"));
  CHECK(sme2::same_file(path, folder.path("b")));
  CHECK(sme2::same_file(folder.path("none"), folder.path("./none")));
  CHECK(!sme2::same_file(path, folder.path("none")));
  CHECK(sme2::base_name("/x/y.json") == "y.json");
}
