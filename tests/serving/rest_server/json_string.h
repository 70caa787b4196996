// JSON strings.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

inline void AppendQuoted(std::string_view text, std::string* json) {
  *json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      *json += '\\';
      *json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      *json += escape;
    } else {
      *json += c;
    }
  }
  *json += '"';
}

inline std::string Quoted(std::string_view text) {
  std::string json;
  AppendQuoted(text, &json);
  return json;
}
