// SPDX-License-Identifier: Apache-2.0
#include "daemon/mig_record.h"

#include <gtest/gtest.h>

#include "daemon/mig_api.h"

namespace gpumux::daemon {
namespace {

gpu::Uuid SomeGpu() { return *gpu::ParseUuid("GPU-01234567-89ab-cdef-0011-2233445566ff"); }

TEST(MigRecord, IsReadAsItWasWritten) {
  const MigChangeRecord change{SomeGpu(), {{{0, 19}, {0}}, {{4, 9}, {1, 1, 0}}}, {{0, 5}}, 1000};
  EXPECT_EQ(*ParseMigChange(FormatMigChange(change)), change);
  const MigKept kept{{SomeGpu(), {{{2, 19}, {}}}}};
  EXPECT_EQ(*ParseMigKept(FormatMigKept(kept)), kept);
}

TEST(MigRecord, RefusesWhatIsNone) {
  std::string many =
      R"({"version":1,"gpu":"GPU-01234567-89ab-cdef-0011-2233445566ff","wanted":[],"by":0,"before":[)";
  for (int i = 0; i < 100; ++i) many += R"({"start":0,"profile":19},)";
  many.back() = ']';
  for (
      const std::string& text :
      {std::string(), std::string("null"), std::string("[]"), std::string(R"({"version":2})"), many + "}",
       std::string(R"({"version":1,"gpu":"x","before":[],"wanted":[],"by":0})"),
       std::string(
           R"({"version":1,"gpu":"MIG-01234567-89ab-cdef-0011-2233445566ff","before":[],"wanted":[],"by":0})"),
       std::string(
           R"({"version":1,"gpu":"GPU-01234567-89ab-cdef-0011-2233445566ff","before":{},"wanted":[],"by":0})")}) {
    EXPECT_FALSE(ParseMigChange(text)) << text;
    EXPECT_FALSE(ParseMigKept(text)) << text;
  }
}

TEST(MigChangeRequest, IsChecked) {
  const auto request = ParseMigChangeRequest(
      R"({"gpu":"0","instances":[{"profile":19,"start":2}],"drain":"wait","wait_seconds":1.5,"keep":true})");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->wanted, (core::mig::Layout{{2, 19}}));
  EXPECT_EQ(request->drain, MigDrain::kWait);
  EXPECT_EQ(request->wait, std::chrono::milliseconds(1500));
  EXPECT_TRUE(request->keep);
  EXPECT_FALSE(request->dry_run);
  for (const char* wrong :
       {"", "[]", "{}", R"({"instances":{}})", R"({"instances":[1]})", R"({"instances":[{"profile":19}]})",
        R"({"instances":[{"profile":-1,"start":0}]})", R"({"instances":[{"profile":1e9,"start":0}]})",
        R"({"instances":[],"gpu":0})", R"({"instances":[],"drain":"now"})",
        R"({"instances":[],"wait_seconds":-1})", R"({"instances":[],"dry_run":1})",
        R"({"instances":[],"wait_seconds":1e300})"}) {
    EXPECT_FALSE(ParseMigChangeRequest(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace gpumux::daemon
