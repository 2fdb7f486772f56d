// SPDX-License-Identifier: Apache-2.0
#include "gpu/uuid.h"

#include <gtest/gtest.h>

namespace gpumux::gpu {
namespace {

TEST(Uuid, ReadsWhatNvmlWritesAndWritesItBack) {
  const auto uuid = ParseUuid("GPU-01234567-89ab-CDEF-0011-2233445566ff");
  ASSERT_TRUE(uuid);
  EXPECT_EQ(uuid->bytes[0], 0x01);
  EXPECT_EQ(uuid->bytes[4], 0x89);
  EXPECT_EQ(uuid->bytes[15], 0xff);
  EXPECT_EQ(uuid->ToString(), "GPU-01234567-89ab-cdef-0011-2233445566ff");
}

TEST(Uuid, OfAnInstanceIsWrittenOtherwise) {
  const auto uuid = ParseUuid("MIG-01234567-89ab-cdef-0011-2233445566ff");
  ASSERT_TRUE(uuid);
  EXPECT_EQ(uuid->ToString(), "MIG-01234567-89ab-cdef-0011-2233445566ff");
  // What a program says of its device are the bytes alone.
  EXPECT_EQ(*uuid, *ParseUuid("GPU-01234567-89ab-cdef-0011-2233445566ff"));
}

TEST(Uuid, RefusesEverythingElse) {
  for (const char* text :
       {"", "GPU-", "0", "GPU-01234567-89ab-cdef-0011-2233445566f",
        "GPU-01234567-89ab-cdef-0011-2233445566ff0", "GPU-01234567-89ab-cdef-0011+2233445566ff",
        "MIG-GPU-01234567-89ab-cdef-0011-2233445566ff/1/0", "GPU-0123456g-89ab-cdef-0011-2233445566ff",
        "GPU-012345678-9ab-cdef-0011-2233445566ff"}) {
    EXPECT_FALSE(ParseUuid(text)) << text;
  }
}

}  // namespace
}  // namespace gpumux::gpu
