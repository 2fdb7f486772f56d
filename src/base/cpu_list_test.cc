// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumux {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CpuLists, AreReadAndWrittenAsTheKernelDoes) {
  EXPECT_THAT(*ParseCpuList("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_EQ(FormatCpuList({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_THAT(*ParseCpuList("\n"), IsEmpty());
  EXPECT_EQ(FormatCpuList({}), "");
  EXPECT_THAT(*ParseCpuList("3,1-2,2"), ElementsAre(1, 2, 3));
  for (const char* wrong : {"a", "1-", "-1", "3-1", "1,", "1,,2", "1 2", "8192", "0-8192", "99999999999"})
    EXPECT_FALSE(ParseCpuList(wrong)) << wrong;
}

TEST(CpuLists, AreWordsOfBits) {
  EXPECT_THAT(CpusOfWords({0x5, 0, 1}), ElementsAre(0, 2, 128));
  EXPECT_THAT(WordsOfCpus({0, 2, 128}), ElementsAre(0x5, 0, 1));
  EXPECT_THAT(WordsOfCpus({}), ElementsAre(0));
}

TEST(CpuLists, AreSets) {
  EXPECT_THAT(Intersection({0, 1, 5}, {1, 5, 7}), ElementsAre(1, 5));
  EXPECT_THAT(Union({0, 5}, {1, 5}), ElementsAre(0, 1, 5));
}

}  // namespace
}  // namespace gpumux
