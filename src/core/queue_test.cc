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

const Policy kNoRules;

std::optional<Queue::Outcome> Next(Queue& queue, std::vector<GpuSnapshot> gpus) {
  return queue.Next({kNoRules, std::move(gpus)});
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
  EXPECT_EQ(Next(queue, {Gpu(0, 30 * kGiB)})->request.id, 1u);
  EXPECT_EQ(Next(queue, {Gpu(0, 10 * kGiB)})->request.id, 2u);
  EXPECT_FALSE(Next(queue, {Gpu(0, 10 * kGiB)}));
}

TEST(Queue, LetsNobodyOvertakeOnAGpuThatTheHeadCouldHave) {
  Queue queue;
  ASSERT_TRUE(queue.Push(Ask(1, 100 * kGiB)));
  ASSERT_TRUE(queue.Push(Ask(2, 10 * kGiB)));
  EXPECT_FALSE(Next(queue, {Gpu(0, 30 * kGiB)}));
  EXPECT_EQ(queue.Position(1), 1u);
  EXPECT_EQ(queue.Position(2), 2u);
  EXPECT_THAT(queue.waiting()[1].reason, testing::HasSubstr("kept for a request ahead"));
}

TEST(Queue, BackfillsGpusThatTheHeadCannotUse) {
  Queue queue;
  ASSERT_TRUE(queue.Push(Ask(1, 100 * kGiB, {"0"})));
  ASSERT_TRUE(queue.Push(Ask(2, 10 * kGiB)));
  const auto outcome = Next(queue, {Gpu(0, 30 * kGiB), Gpu(1, 30 * kGiB)});
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->request.id, 2u);
  EXPECT_EQ(std::get<Placement>(outcome->decision).shares[0].gpu, Gpu(1, 0).uuid);
  EXPECT_EQ(queue.Position(1), 1u);
}

TEST(Queue, HandsOutRefusalsToo) {
  Queue queue;
  ASSERT_TRUE(queue.Push(Ask(1, 100 * kGiB)));
  ASSERT_TRUE(queue.Push(Ask(2, 500 * kGiB)));
  const auto outcome = Next(queue, {Gpu(0, 30 * kGiB)});
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
  EXPECT_EQ(Next(queue, {Gpu(0, 30 * kGiB)})->request.id, 2u);
}

Running Runs(const char* name, uint64_t bytes, std::optional<Forecast::Time> ends_by,
             std::optional<uint64_t> limit = {}) {
  return {.name = name,
          .user = "ben",
          .groups = {},
          .mode = Mode::kTimeslice,
          .on = {{Gpu(0, 0).uuid, bytes, bytes, limit.value_or(bytes)}},
          .ends_by = ends_by};
}

Request Limited(uint64_t id, uint64_t bytes, std::chrono::seconds time) {
  Request request = Ask(id, bytes);
  request.time_limit = time;
  return request;
}

TEST(Queue, ServesAHigherPriorityFirstAndEqualsByArrival) {
  Queue queue;
  for (const auto& [id, priority] : {std::pair{1, 0}, {2, 5}, {3, 5}, {4, -1}, {5, 0}}) {
    Request request = Ask(static_cast<uint64_t>(id), 100 * kGiB);
    request.priority = priority;
    ASSERT_TRUE(queue.Push(request));
  }
  std::vector<uint64_t> order;
  while (auto outcome = Next(queue, {Gpu(0, 120 * kGiB)})) order.push_back(outcome->request.id);
  EXPECT_THAT(order, testing::ElementsAre(2, 3, 1, 5, 4));
}

TEST(Queue, IsInTheOrderOfANewPolicy) {
  Queue queue;
  for (uint64_t id = 1; id <= 3; ++id) {
    Request request = Ask(id, 100 * kGiB);
    request.user = id == 1 ? "ben" : "anna";
    ASSERT_TRUE(queue.Push(request));
  }
  Policy policy;
  policy.users["anna"].priority = 1;
  queue.Reorder(policy);
  EXPECT_EQ(queue.Position(2), 1u);
  EXPECT_EQ(queue.Position(3), 2u);
  EXPECT_EQ(queue.Position(1), 3u);
  queue.Reorder(Policy{});
  EXPECT_EQ(queue.Position(1), 1u);
}

TEST(Queue, LetsOvertakeWhoEndsBeforeTheHeadCouldStart) {
  using std::chrono::seconds;
  // 100 GiB are taken until 600 s, 20 are free; the head needs 110.
  const auto next = [&](const Request& behind, std::optional<Forecast::Time> ends_by) {
    Queue queue;
    EXPECT_TRUE(queue.Push(Ask(1, 110 * kGiB)));
    EXPECT_TRUE(queue.Push(behind));
    const auto outcome =
        queue.Next({kNoRules, {Gpu(0, 40 * kGiB)}, {Runs("a", 100 * kGiB, ends_by)}, seconds(100)});
    return outcome ? outcome->request.id : 0;
  };
  const auto margin = std::chrono::duration_cast<seconds>(kEndingTakes);
  EXPECT_EQ(next(Limited(2, 10 * kGiB, seconds(500) - margin), seconds(600)), 2u);
  EXPECT_EQ(next(Limited(2, 10 * kGiB, seconds(501) - margin), seconds(600)), 0u);
  EXPECT_EQ(next(Ask(2, 10 * kGiB), seconds(600)), 0u);
  // Nobody knows when the head could start.
  EXPECT_EQ(next(Limited(2, 10 * kGiB, seconds(1)), std::nullopt), 0u);
  // It should have ended long ago.
  EXPECT_EQ(next(Limited(2, 10 * kGiB, seconds(1)), seconds(50)), 0u);
}

TEST(Queue, SaysByWhenItStartsOnlyWhereTimeLimitsProveIt) {
  using std::chrono::seconds;
  Queue queue;
  ASSERT_TRUE(queue.Push(Limited(1, 110 * kGiB, seconds(50))));
  ASSERT_TRUE(queue.Push(Ask(2, 110 * kGiB)));
  ASSERT_TRUE(queue.Push(Ask(3, 110 * kGiB)));
  const auto estimates = [&](std::vector<Running> running) {
    const Situation situation{kNoRules, {Gpu(0, 10 * kGiB)}, std::move(running), seconds(100)};
    EXPECT_FALSE(queue.Next(situation));
    queue.MakeEstimates(situation);
    std::vector<Estimate> all;
    for (const auto& waiting : queue.waiting()) all.push_back(waiting.estimate);
    return all;
  };
  auto sure = estimates({Runs("a", 90 * kGiB, seconds(600)), Runs("b", 40 * kGiB, seconds(300))});
  EXPECT_EQ(sure[0].at_the_latest, seconds(600));
  EXPECT_EQ(sure[1].at_the_latest, seconds(650) + kEndingTakes);
  EXPECT_FALSE(sure[2].at_the_latest);
  EXPECT_THAT(sure[2].why_not, testing::HasSubstr("time limit"));
  // `b` alone fits beside the head, but may come to use all that `a` leaves.
  auto bursts =
      estimates({Runs("a", 90 * kGiB, seconds(600)), Runs("b", 20 * kGiB, seconds(900), 140 * kGiB)});
  EXPECT_EQ(bursts[0].at_the_latest, seconds(900));
  auto unknown = estimates({Runs("a", 90 * kGiB, seconds(600)), Runs("b", 40 * kGiB, std::nullopt)});
  EXPECT_FALSE(unknown[0].at_the_latest);
  EXPECT_EQ(unknown[0].why_not, "b runs without a time limit");
  // One that should have ended long ago.
  EXPECT_FALSE(estimates({Runs("late", 120 * kGiB, seconds(50))})[0].at_the_latest);
}

TEST(Queue, IsBounded) {
  Queue queue;
  for (uint64_t id = 0; id < Queue::kMaxWaiting; ++id) ASSERT_TRUE(queue.Push(Ask(id, kGiB)));
  EXPECT_FALSE(queue.Push(Ask(9999, kGiB)));
}

}  // namespace
}  // namespace gpumux::core
