// SPDX-License-Identifier: Apache-2.0
#include "core/mig/profile_name.h"

#include <gtest/gtest.h>

namespace gpumux::core::mig {
namespace {

using gpu::MigAttribute;

TEST(MigProfileName, IsReadAndPrinted) {
  struct Case {
    const char* text;
    ProfileName name;
    const char* printed;
  };
  const Case cases[] = {
      {"1g.18gb", {{}, 1, 18, MigAttribute::kNone}, "1g.18gb"},
      {"3G.71GB", {{}, 3, 71, MigAttribute::kNone}, "3g.71gb"},
      {"MIG 1g.18gb+me", {{}, 1, 18, MigAttribute::kMe}, "1g.18gb+me"},
      {"2g.48gb+me.all", {{}, 2, 48, MigAttribute::kMeAll}, "2g.48gb+me.all"},
      {"1g.24gb-me", {{}, 1, 24, MigAttribute::kNoMe}, "1g.24gb-me"},
      {"4g.96gb+gfx", {{}, 4, 96, MigAttribute::kGfx}, "4g.96gb+gfx"},
      {"1c.3g.71gb", {1, 3, 71, MigAttribute::kNone}, "1c.3g.71gb"},
      {"3c.3g.71gb", {{}, 3, 71, MigAttribute::kNone}, "3g.71gb"},
      {"2c.4g.20gb+me", {2, 4, 20, MigAttribute::kMe}, "2c.4g.20gb+me"},
      {"1g.0gb", {{}, 1, 0, MigAttribute::kNone}, "1g.0gb"},
  };
  for (const Case& c : cases) {
    const auto name = ParseProfileName(c.text);
    ASSERT_TRUE(name) << c.text << ": " << name.error().ToString();
    EXPECT_EQ(*name, c.name) << c.text;
    EXPECT_EQ(name->ToString(), c.printed);
    EXPECT_EQ(ParseProfileName(name->ToString()), *name);
  }
  for (const gpu::MigModel& model : gpu::MigModels()) {
    for (const gpu::MigProfile& profile : model.profiles) {
      const auto name = ParseProfileName(profile.name);
      ASSERT_TRUE(name) << profile.name;
      EXPECT_EQ(name->ToString(), profile.name);
      EXPECT_EQ(name->slices, profile.compute_slices);
      EXPECT_EQ(name->attribute, profile.attribute);
    }
  }
}

TEST(MigProfileName, IsRefusedWithTheReason) {
  for (const char* text : {"",
                           "g",
                           "1g",
                           "1g.",
                           "1g.18",
                           "1g.18g",
                           "g.18gb",
                           "0g.18gb",
                           "01g.18gb",
                           "1g.018gb",
                           "-1g.18gb",
                           "1g.18gb+",
                           "1g.18gb+me+gfx",
                           "1g.18gb+foo",
                           "1g.18gb me",
                           " 1g.18gb",
                           "1g.18gb ",
                           "1.5g.18gb",
                           "100g.18gb",
                           "1g.100000gb",
                           "99999999999999999999g.18gb",
                           "0c.1g.18gb",
                           "1c1g.18gb",
                           "1g.18gb\n"}) {
    const auto name = ParseProfileName(text);
    ASSERT_FALSE(name) << text;
    EXPECT_EQ(name.error().code, Code::kInvalid);
    EXPECT_TRUE(name.error().message.ends_with("is no MIG profile")) << name.error().message;
  }
  EXPECT_EQ(ParseProfileName("\x1b[1g.18gb").error().ToString(),
            "'?[1g.18gb' is no MIG profile; write for example 1g.18gb, 3g.71gb or 1g.18gb+me");
  EXPECT_EQ(ParseProfileName("4c.3g.71gb").error().ToString(),
            "'4c.3g.71gb': a compute instance of 4 slices is larger than its GPU instance");
}

TEST(MigProfileName, FindsAProfileByNameIdAndASizeThatDrifted) {
  const gpu::MigModel& h200 = **gpu::FindMigModel("H200");
  const gpu::MigModel& a100 = **gpu::FindMigModel("A100-80");
  const gpu::MigModel& gb200 = **gpu::FindMigModel("GB200");
  const auto id = [](const gpu::MigModel& model, const char* text) -> int {
    const auto profile = FindProfile(model, text);
    return profile ? static_cast<int>(*(*profile)->id) : -1;
  };
  EXPECT_EQ(id(h200, "3g.71gb"), 9);
  EXPECT_EQ(id(h200, "MIG 1g.18gb+me"), 20);
  EXPECT_EQ(id(h200, "15"), 15);
  EXPECT_EQ(id(a100, "3g.39gb"), 9);  // as drivers of R535 called it
  EXPECT_EQ(id(gb200, "1g.24gb"), 19);
  EXPECT_EQ(id(gb200, "7g.189gb"), 0);
  EXPECT_EQ(FindProfile(h200, "3g.40gb").error().ToString(),
            "H200 has no profile 3g.40gb; it has 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, "
            "7g.141gb");
  EXPECT_EQ(FindProfile(h200, "3g.40gb").error().code, Code::kNotFound);
  EXPECT_EQ(FindProfile(h200, "99").error().message, "H200 has no profile 99");
  EXPECT_EQ(FindProfile(h200, "1g.18gb+gfx").error().message, "H200 has no profile 1g.18gb+gfx");
  EXPECT_EQ(
      FindProfile(h200, "1c.3g.71gb").error().ToString(),
      "1c.3g.71gb is a compute instance, a part of a GPU instance; name the GPU instance, without the part "
      "before its g");
}

}  // namespace
}  // namespace gpumux::core::mig
