// A writer for the few JSON shapes the runner emits. Commas and escaping are its business.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sme2 {

class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(const std::string& name);

  JsonWriter& text(const std::string& value);
  JsonWriter& number(int64_t value);
  JsonWriter& decimal(double value);  // finite
  JsonWriter& boolean(bool value);
  JsonWriter& null();

  JsonWriter& texts(const std::vector<std::string>& values);
  JsonWriter& numbers(const std::vector<int64_t>& values);

  const std::string& str() const { return out_; }

 private:
  void separate();

  std::string out_;
  bool needs_comma_ = false;
};

// The JSON string literal of `value`, quotes included. Bytes that are not UTF-8 become U+FFFD.
std::string json_quoted(const std::string& value);

}  // namespace sme2
