// SPDX-License-Identifier: Apache-2.0
#include "mutation.h"

#include <algorithm>
#include <cstring>

namespace gpumux::test {

namespace {

constexpr size_t kMostBytes = 70'000;

// Numbers at which sums wrap, limits lie and signs change.
constexpr uint64_t kNumbers[] = {0,          1,
                                 2,          7,
                                 15,         16,
                                 17,         127,
                                 128,        255,
                                 256,        4095,
                                 4096,       61439,
                                 61440,      61441,
                                 65535,      65536,
                                 0x7fffffff, 0x80000000,
                                 0xffffffff, 0x100000000,
                                 1ull << 60, (1ull << 63) - 1,
                                 1ull << 63, UINT64_MAX - 1,
                                 UINT64_MAX};
constexpr const char* kWords[] = {"-1",       "1e308", "0.0000001", "null",     "true", "{}", "[]",
                                  "[[[[[[[[", "\"\"",  "\\u0000",   "\xff\xfe", "\n",   ";",  "#",
                                  "{",        "}",     ".global",   "%n%s",     "../",  "x",  ",",
                                  ":",        "*",     "@",         "\r\n\r\n"};

}  // namespace

void Mutation::Change(std::string* text) {
  const size_t at = At(*text);
  switch (random_() % 10) {
    case 0:
      if (!text->empty()) (*text)[at] ^= static_cast<char>(1u << random_() % 8);
      break;
    case 1:
      if (!text->empty()) (*text)[at] = static_cast<char>(random_());
      break;
    case 2:
      text->resize(at);
      break;
    case 3:
      text->erase(at, 1 + random_() % 16);
      break;
    case 4: {  // a number in binary, of any width
      const uint64_t number = kNumbers[random_() % std::size(kNumbers)];
      const size_t width = size_t{1} << random_() % 4;
      if (text->size() >= width)
        std::memcpy(text->data() + random_() % (text->size() - width + 1), &number, width);
      break;
    }
    case 5: {  // a number in text
      const size_t digit = text->find_first_of("0123456789", at);
      if (digit == std::string::npos) break;
      const size_t end = text->find_first_not_of("0123456789", digit);
      text->replace(digit, (end == std::string::npos ? text->size() : end) - digit,
                    std::to_string(kNumbers[random_() % std::size(kNumbers)]));
      break;
    }
    case 6:
      text->insert(at, kWords[random_() % std::size(kWords)]);
      break;
    case 7: {  // a part of it again, elsewhere
      const std::string part = text->substr(at, 1 + random_() % 64);
      for (uint64_t i = random_() % 8 == 0 ? random_() % 64 : 1; i > 0; --i) text->insert(At(*text), part);
      break;
    }
    case 8: {  // the end of another
      const std::string& other = corpus_[random_() % corpus_.size()];
      *text = text->substr(0, at) + other.substr(At(other));
      break;
    }
    default:
      if (text->size() > 1) std::swap((*text)[at], (*text)[At(*text)]);
  }
}

std::string Mutation::Next() {
  std::string text = corpus_[random_() % corpus_.size()];
  for (uint64_t changes = 1 + random_() % (random_() % 4 == 0 ? 16 : 4); changes > 0; --changes) {
    Change(&text);
    if (text.size() > kMostBytes) text.resize(kMostBytes);
  }
  return text;
}

}  // namespace gpumux::test
