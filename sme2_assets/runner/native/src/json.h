// A writer for the few JSON shapes the runner emits. Commas and escaping are its business.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
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

  // The value, or null where there is none.
  template <typename T>
  JsonWriter& maybe(const std::optional<T>& value) {
    if (!value) {
      return null();
    }
    if constexpr (std::is_same_v<T, bool>) {
      return boolean(*value);
    } else if constexpr (std::is_integral_v<T>) {
      return number(static_cast<int64_t>(*value));
    } else if constexpr (std::is_floating_point_v<T>) {
      return decimal(*value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      return text(*value);
    } else {
      return numbers(*value);
    }
  }

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
