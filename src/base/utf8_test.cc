// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace gpumux {
namespace {

TEST(Utf8, EveryCharacterComesBack) {
  for (char32_t character = 1; character <= 0x10ffff; ++character) {
    if (character >= 0xd800 && character <= 0xdfff) continue;
    const std::string bytes = Utf8(character);
    std::string_view rest = bytes;
    ASSERT_EQ(TakeUtf8(rest), character);
    ASSERT_TRUE(rest.empty()) << static_cast<uint32_t>(character);
  }
}

TEST(Utf8, WhatIsNoneIsTakenByteByByte) {
  // Overlong, a surrogate, too large, a tail alone, cut short.
  for (const char* bytes :
       {"\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8\x88", "\x80", "\xe6\x97"}) {
    std::string_view rest = bytes;
    const size_t before = rest.size();
    EXPECT_EQ(TakeUtf8(rest), 0u) << bytes;
    EXPECT_EQ(rest.size(), before - 1) << bytes;
  }
}

}  // namespace
}  // namespace gpumux
