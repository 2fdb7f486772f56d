// SPDX-License-Identifier: Apache-2.0
#include "ipc/session_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/frame.h"

namespace gpumux::ipc {
namespace {

using std::chrono::milliseconds;

class Session : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = "/tmp/gpumux-session-" + std::to_string(::getpid()) + ".sock";
    listener_ = std::move(*UnixListener::Listen(path_, SOCK_SEQPACKET, 0600));
    client_.emplace(std::move(*SessionClient::Connect(path_)));
    daemon_ = SeqpacketSocket(std::move(*listener_.Accept()));
  }
  std::string path_;
  UnixListener listener_;
  std::optional<SessionClient> client_;
  SeqpacketSocket daemon_;
};

TEST_F(Session, ARequestIsQueuedGrantedWithLocksAndSummarised) {
  ASSERT_TRUE(client_->SendRequest(R"({"command":["a"]})"));
  const auto request = daemon_.Receive();
  ASSERT_TRUE(request);
  EXPECT_EQ(DecodeFrame(request->bytes)->Text(), R"({"command":["a"]})");
  EXPECT_EQ(DecodeFrame(request->bytes)->type, GPUMUX_RUN_REQUEST);

  EXPECT_FALSE(client_->Next(milliseconds(0))->has_value());
  ASSERT_TRUE(daemon_.Send(*EncodeText(GPUMUX_RUN_QUEUED, 0, R"({"position":1})")));
  const int lock[] = {STDERR_FILENO};
  ASSERT_TRUE(daemon_.Send(*EncodeText(GPUMUX_RUN_GRANTED, 0, R"({"tenant_id":"t-1"})"), lock));
  const auto queued = client_->Next(milliseconds(1000));
  EXPECT_EQ((*queued)->type, SessionEvent::Type::kQueued);
  EXPECT_EQ((*queued)->json, R"({"position":1})");
  const auto granted = client_->Next(milliseconds(1000));
  EXPECT_EQ((*granted)->type, SessionEvent::Type::kGranted);
  ASSERT_EQ((*granted)->locks.size(), 1u);
  EXPECT_TRUE((*granted)->locks[0].valid());
  daemon_.Close();
  EXPECT_EQ((*client_->Next(milliseconds(1000)))->type, SessionEvent::Type::kClosed);
  EXPECT_EQ(client_->SendEnded("{}").error().code, Code::kUnavailable);
}

TEST_F(Session, ARefusalCarriesItsTextAndExitCode) {
  gpumux_refused refused{.reason = GPUMUX_REASON_DEVICE_FULL, .exit_code = 4, .text = {}};
  SetField(refused.text, "needs 12.0 GiB");
  ASSERT_TRUE(daemon_.Send(EncodeStruct(GPUMUX_REFUSED, 0, refused)));
  const auto event = client_->Next(milliseconds(1000));
  EXPECT_EQ((*event)->type, SessionEvent::Type::kRefused);
  EXPECT_EQ((*event)->refusal, "needs 12.0 GiB");
  EXPECT_EQ((*event)->exit_code, 4);
}

TEST_F(Session, WhatIsNotOfTheProtocolIsAnError) {
  ASSERT_TRUE(daemon_.Send(std::vector<std::byte>(40, std::byte{1})));
  EXPECT_EQ(client_->Next(milliseconds(1000)).error().code, Code::kInvalid);
  ASSERT_TRUE(daemon_.Send(EncodeStruct(GPUMUX_CREDIT_REPLY, 0, gpumux_credit_reply{})));
  EXPECT_EQ(client_->Next(milliseconds(1000)).error().code, Code::kInvalid);
}

TEST_F(Session, ARequestThatIsTooLargeIsNotSent) {
  EXPECT_EQ(client_->SendRequest(std::string(70'000, 'x')).error().code, Code::kInvalid);
}

}  // namespace
}  // namespace gpumux::ipc
