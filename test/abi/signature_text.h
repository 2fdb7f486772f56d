// SPDX-License-Identifier: Apache-2.0
//
// Function types of our headers and of NVIDIA's are never the same C++ type, but
// their texts are the same once the names of the types agree.
#pragma once

#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <regex>
#include <string>

namespace gpumux {

inline std::string SignatureText(const char* mangled) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(mangled, nullptr, nullptr, &status), free);
  return status == 0 ? text.get() : mangled;
}

// `long` and `long long` are the same to the binary interface of 64-bit Linux,
// where one header may use uint64_t and the other unsigned long long.
inline std::string WithoutLongLong(const std::string& text) {
  return std::regex_replace(text, std::regex("\\blong long\\b"), "long");
}

inline std::string OurSignature(const char* mangled) {
  return WithoutLongLong(
      std::regex_replace(SignatureText(mangled), std::regex("gpumux::(cuda|nvml|workload)::"), ""));
}

// `tags`: NVIDIA's tag of a type ("CUmemLocation_st") -> the name we both use.
inline std::string TheirSignature(const char* mangled, const std::map<std::string, std::string>& tags) {
  const std::string text = SignatureText(mangled);
  static const std::regex kWord("[A-Za-z_][A-Za-z0-9_]*");
  std::string out;
  size_t end = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), kWord), last; it != last; ++it) {
    out.append(text, end, it->position() - end);
    const auto tag = tags.find(it->str());
    out += tag == tags.end() ? it->str() : tag->second;
    end = it->position() + it->length();
  }
  return WithoutLongLong(out + text.substr(end));
}

}  // namespace gpumux
