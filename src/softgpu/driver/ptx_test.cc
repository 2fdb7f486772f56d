// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/ptx.h"

#include <gtest/gtest.h>

#include <random>

namespace gpumux::softgpu {
namespace {

const std::string kHead = ".version 7.8\n.target sm_80\n.address_size 64\n";

TEST(Ptx, FindsKernelsAndTheirParameters) {
  const auto ptx = ParsePtx(kHead + R"(
/* .entry commented() {} */
.visible .entry saxpy(
  .param .f32 a, // a comment } {
  .param .u64 .ptr .global .align 16 x,
  .param .align 8 .b8 packed[12],
  .param .u64 n)
.maxntid 256, 1, 1
{
  .local .align 16 .b8 frame[4096];
  .reg .b64 %rd<7>;
  st.local.u32 [%rd1], 1;
  { .param .b64 size; }
  ret;
}
.entry plain() { ret; }
.extern .entry elsewhere(.param .u64 p);
.func (.param .b32 r) helper (.param .b32 a) { ret; }
)");
  ASSERT_TRUE(ptx);
  ASSERT_EQ(ptx->kernels.size(), 2u);
  EXPECT_EQ(ptx->kernels[0].name, "saxpy");
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {{0, 4}, {8, 8}, {16, 12}, {32, 8}};
  ASSERT_EQ(ptx->kernels[0].parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(ptx->kernels[0].parameters[i].offset, expected[i].first) << i;
    EXPECT_EQ(ptx->kernels[0].parameters[i].size, expected[i].second) << i;
  }
  EXPECT_EQ(ptx->kernels[0].local_bytes, 4096u);
  EXPECT_EQ(ptx->kernels[1].name, "plain");
  EXPECT_FALSE(ptx->uses_heap);
}

TEST(Ptx, FindsVariables) {
  const auto ptx = ParsePtx(kHead + R"(
.visible .global .align 16 .b8 big[52428800];
.global .u32 numbers[2][2] = {1, -1, 0x10, 4};
.const .f32 one = 0f3F800000;
.global .align 8 .v4 .f32 wide[3];
.global .u16 open[] = {5, 6, 7};
.extern .global .u32 elsewhere;
.extern .func (.param .b64 r) malloc (.param .b64 s);
)");
  ASSERT_TRUE(ptx);
  ASSERT_EQ(ptx->globals.size(), 5u);
  EXPECT_EQ(ptx->globals[0].bytes, 52'428'800u);
  EXPECT_EQ(ptx->globals[0].alignment, 16u);
  EXPECT_TRUE(ptx->globals[0].initial.empty());
  EXPECT_EQ(ptx->globals[1].bytes, 16u);
  EXPECT_EQ(ptx->globals[1].initial,
            (std::vector<uint8_t>{1, 0, 0, 0, 255, 255, 255, 255, 16, 0, 0, 0, 4, 0, 0, 0}));
  EXPECT_EQ(ptx->globals[2].initial, (std::vector<uint8_t>{0, 0, 0x80, 0x3f}));
  EXPECT_EQ(ptx->globals[3].bytes, 48u);
  EXPECT_EQ(ptx->globals[4].bytes, 6u);
  EXPECT_TRUE(ptx->uses_heap);
}

TEST(Ptx, RefusesWhatCannotBeRead) {
  for (const char* text : {"", "hello", ".version 7.8\n", ".entry k() { ret; }"})
    EXPECT_FALSE(ParsePtx(text)) << text;
  for (const char* text : {".visible .entry k() { ret;", ".visible .entry k()", "}", ".global .b8;",
                           ".global .b8 x[99999999999999999999];", ".global nothing x;", ".entry"}) {
    EXPECT_FALSE(ParsePtx(kHead + text)) << text;
  }
}

TEST(Ptx, SurvivesAnything) {
  const std::string good = kHead +
                           ".visible .entry k(.param .align 8 .b8 p[12]) { .local .b8 f[4]; ret; }\n"
                           ".global .align 4 .u32 a[2] = {1, 2};\n/* c */ // d\n.extern .func malloc();\n";
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good;
    for (int edits = static_cast<int>(random() % 4) + 1; edits > 0 && !text.empty(); --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text.erase(at, random() % 5);
          break;
        case 1:
          text.insert(at, 1, "{}[]();,./*\" .0"[random() % 15]);
          break;
        default:
          text.resize(at);
      }
    }
    ParsePtx(text);
  }
}

}  // namespace
}  // namespace gpumux::softgpu
