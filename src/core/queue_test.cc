// SPDX-License-Identifier: Apache-2.0
#include "core/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumux::core {
namespace {

GpuSnapshot Gpu(unsigned index, uint64_t promisable) {
  GpuSnapshot gpu;
  gpu.uuid.bytes[0] = static_cast<uint8_t>(index + 1);
  gpu.index = index;
  gpu.name = "NVIDIA H200";
  gpu.total_bytes = 140 * kGiB;
  gpu.promisable_bytes = promisable;
  gpu.guaranteed_bytes = 140 * kGiB - promisable;
  gpu.context = ContextCostOf(gpu.name);
  return gpu;
}

Request Ask(uint64_t id, uint64_t bytes, std::vector<std::string> list = {}) {
  Request request;
  request.id = id;
  request.mem = MemorySize{.bytes = bytes, .ratio = 0};
  request.gpu_list = std::move(list);
  return request;
}

TEST(Queue, StartsTheFirstThatFitsInOrderOfArrival) {
  Queue queue;
  ASSERT_TRUE(queue.Push(Ask(1, 20 * kGiB)));
  ASSERT_TRUE(queue.Push(Ask(2, 10 * kGiB)));
  EXPECT_EQ(queue.Next({Gpu(0, 30 * kGiB)})->request.id, 1u);
  EXPECT_EQ(queue.Next({Gpu(0, 10 * kGiB)})->request.id, 2u);
  EXPECT_FALSE(queue.Next({Gpu(0, 10 * kGiB)}));
}

TEST(Queue, LetsNobodyOvertakeOnAGpuThatTheHeadCouldHave) {
  Queue queue;
  ASSERT_TRUE(queue.Push(Ask(1, 100 * kGiB)));
  ASSERT_TRUE(queue.Push(Ask(2, 10 * kGiB)));
  EXPECT_FALSE(queue.Next({Gpu(0, 30 * kGiB)}));
  EXPECT_EQ(queue.Position(1), 1u);
  EXPECT_EQ(queue.Position(2), 2u);
  EXPECT_THAT(queue.waiting()[1].reason, testing::HasSubstr("kept for a request ahead"));
}

TEST(Queue, BackfillsGpusThatTheHeadCannotUse) {
  Queue queue;
  ASSERT_TRUE(queue.Push(Ask(1, 100 * kGiB, {"0"})));
  ASSERT_TRUE(queue.Push(Ask(2, 10 * kGiB)));
  const auto outcome = queue.Next({Gpu(0, 30 * kGiB), Gpu(1, 30 * kGiB)});
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->request.id, 2u);
  EXPECT_EQ(std::get<Placement>(outcome->decision).shares[0].gpu, Gpu(1, 0).uuid);
  EXPECT_EQ(queue.Position(1), 1u);
}

TEST(Queue, HandsOutRefusalsToo) {
  Queue queue;
  ASSERT_TRUE(queue.Push(Ask(1, 100 * kGiB)));
  ASSERT_TRUE(queue.Push(Ask(2, 500 * kGiB)));
  const auto outcome = queue.Next({Gpu(0, 30 * kGiB)});
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->request.id, 2u);
  EXPECT_EQ(std::get<Error>(outcome->decision).code, Code::kDenied);
}

TEST(Queue, ForgetsWhoHungUp) {
  Queue queue;
  ASSERT_TRUE(queue.Push(Ask(1, 100 * kGiB)));
  ASSERT_TRUE(queue.Push(Ask(2, 10 * kGiB)));
  EXPECT_TRUE(queue.Remove(1));
  EXPECT_FALSE(queue.Remove(1));
  EXPECT_EQ(queue.Next({Gpu(0, 30 * kGiB)})->request.id, 2u);
}

TEST(Queue, IsBounded) {
  Queue queue;
  for (uint64_t id = 0; id < Queue::kMaxWaiting; ++id) ASSERT_TRUE(queue.Push(Ask(id, kGiB)));
  EXPECT_FALSE(queue.Push(Ask(9999, kGiB)));
}

}  // namespace
}  // namespace gpumux::core
