// SPDX-License-Identifier: Apache-2.0
#include "ipc/frame.h"

#include <gtest/gtest.h>

#include <random>

namespace gpumux::ipc {
namespace {

std::vector<std::byte> Good() {
  return EncodeStruct(GPUMUX_CREDIT_REQUEST, 7,
                      gpumux_credit_request{.gpu_slot = 1, .flags = 0, .bytes = 4096});
}

TEST(Frame, ComesBackAsItWent) {
  const auto packet = Good();
  const auto frame = DecodeFrame(packet);
  ASSERT_TRUE(frame) << frame.error().message;
  EXPECT_EQ(frame->type, GPUMUX_CREDIT_REQUEST);
  EXPECT_EQ(frame->request_id, 7u);
  EXPECT_EQ(PayloadAs<gpumux_credit_request>(*frame).bytes, 4096u);

  const auto text = EncodeText(GPUMUX_RUN_REQUEST, 0, R"({"name":"a"})");
  EXPECT_EQ(DecodeFrame(*text)->Text(), R"({"name":"a"})");
}

// The bytes as another implementation (the guard) writes them.
TEST(Frame, HasTheLayoutOfTheHeader) {
  const auto packet = Good();
  ASSERT_EQ(packet.size(), 32u);
  const unsigned char expected[] = {'G', 'M', 'U', 'X', 7, 0, 4, 0, 16, 0,  0, 0, 7, 0, 0, 0,
                                    1,   0,   0,   0,   0, 0, 0, 0, 0,  16, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(std::memcmp(packet.data(), expected, sizeof expected), 0);
}

TEST(Frame, AnyByteOfTheHeaderThatIsWrongIsRefused) {
  for (size_t i = 0; i < 12; ++i) {
    auto packet = Good();
    packet[i] ^= std::byte{0x80};
    const auto frame = DecodeFrame(packet);
    ASSERT_FALSE(frame) << i;
    const bool version = i == 4 || i == 5;
    EXPECT_EQ(frame.error().code, version ? Code::kUnsupported : Code::kInvalid) << i;
  }
}

TEST(Frame, AWrongLengthIsRefused) {
  auto packet = Good();
  packet.push_back(std::byte{0});
  EXPECT_FALSE(DecodeFrame(packet));
  packet.resize(31);
  EXPECT_FALSE(DecodeFrame(packet));
  for (size_t n = 0; n < 16; ++n) EXPECT_FALSE(DecodeFrame(std::span(packet).first(n)));
  // A struct of another message's size, announced correctly.
  const auto wrong = EncodeStruct(GPUMUX_CREDIT_REPLY, 1, gpumux_credit_request{});
  EXPECT_FALSE(DecodeFrame(wrong));
  EXPECT_FALSE(DecodeFrame(*EncodeText(GPUMUX_RUN_REQUEST, 0, "")));
}

TEST(Frame, APayloadThatIsTooLargeIsNotMade) {
  EXPECT_TRUE(EncodeText(GPUMUX_RUN_REQUEST, 0, std::string(GPUMUX_MAX_PAYLOAD, 'x')));
  EXPECT_EQ(EncodeText(GPUMUX_RUN_REQUEST, 0, std::string(GPUMUX_MAX_PAYLOAD + 1, 'x')).error().code,
            Code::kInvalid);
}

TEST(Frame, RandomBytesNeverPassAndNeverReadBeyondThePacket) {
  std::mt19937 random(20);
  for (int i = 0; i < 50'000; ++i) {
    // An exact heap block, so that AddressSanitizer sees a read beyond it.
    std::vector<std::byte> packet(random() % 64);
    for (std::byte& b : packet) b = static_cast<std::byte>(random());
    EXPECT_FALSE(DecodeFrame(packet));
  }
}

TEST(Frame, MutatedFramesThatPassHaveTheShapeOfTheirType) {
  std::mt19937 random(21);
  int passed = 0;
  for (int i = 0; i < 50'000; ++i) {
    auto packet = Good();
    for (unsigned n = random() % 3 + 1; n > 0; --n)
      packet[random() % packet.size()] = static_cast<std::byte>(random());
    const auto frame = DecodeFrame(packet);
    if (!frame) continue;
    ++passed;
    EXPECT_EQ(frame->payload.size(), 16u);
  }
  EXPECT_GT(passed, 0);
}

TEST(Field, IsCutAndAlwaysEnded) {
  gpumux_refused refused;
  std::memset(&refused, 0x41, sizeof refused);
  EXPECT_EQ(FieldText(refused.text).size(), sizeof refused.text);  // a peer that sends no NUL
  SetField(refused.text, std::string(600, 'b'));
  EXPECT_EQ(FieldText(refused.text), std::string(511, 'b'));
  SetField(refused.text, "short");
  EXPECT_EQ(FieldText(refused.text), "short");
}

}  // namespace
}  // namespace gpumux::ipc
