// SPDX-License-Identifier: Apache-2.0
#include "core/quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/admission.h"

namespace gpumux::core {
namespace {

using testing::HasSubstr;

GpuSnapshot Gpu(unsigned index, uint64_t promisable = 140 * kGiB) {
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

Running Has(const char* name, const char* user, unsigned gpu, uint64_t bytes,
            std::vector<std::string> groups = {}) {
  return {.name = name,
          .user = user,
          .groups = std::move(groups),
          .mode = Mode::kTimeslice,
          .on = {{Gpu(gpu).uuid, bytes, bytes, bytes}},
          .ends_by = {}};
}

Request Ask(uint64_t bytes, unsigned gpus = 1) {
  Request request;
  request.user = "anna";
  request.groups = {"vision"};
  if (bytes) request.mem = MemorySize{.bytes = bytes, .ratio = 0};
  request.gpu_count = gpus;
  return request;
}

Decision Judge(const Policy& policy, const Request& request, const std::vector<Running>& running,
               const std::vector<GpuSnapshot>& gpus) {
  return Admit(request, gpus, {},
               {policy.fill, QuotaBook(policy, running).BoundsOf(request.user, request.groups)});
}

TEST(Priority, IsTheUsersThenItsGroupsHighestThenEverybodys) {
  Policy policy;
  EXPECT_EQ(PriorityOf(policy, "anna", {"vision"}), 0);
  policy.every_user = Rule{.quota = {}, .priority = -5};
  EXPECT_EQ(PriorityOf(policy, "anna", {"vision"}), -5);
  policy.groups["vision"].priority = 1;
  policy.groups["speech"].priority = 7;
  EXPECT_EQ(PriorityOf(policy, "anna", {"vision", "speech"}), 7);
  policy.users["anna"].priority = 2;
  EXPECT_EQ(PriorityOf(policy, "anna", {"vision", "speech"}), 2);
  policy.users["anna"].priority.reset();
  EXPECT_EQ(PriorityOf(policy, "anna", {}), 0);  // named, so not one of every user
}

TEST(Quota, RefusesForGoodWhatItNeverAllows) {
  Policy policy;
  policy.users["anna"].quota = {.guaranteed_bytes = 80 * kGiB, .tenants = {}, .gpus = 2};
  const std::vector<GpuSnapshot> gpus = {Gpu(0), Gpu(1), Gpu(2)};
  const auto text = [&](const Request& request) {
    const Decision decision = Judge(policy, request, {}, gpus);
    const Error* error = std::get_if<Error>(&decision);
    EXPECT_TRUE(error);
    EXPECT_EQ(ExitStatus(error->code), 4);
    EXPECT_THAT(error->hint,
                testing::MatchesRegex(".* to raise quota\\.(user\\.anna|group\\.vision)\\..* in .*"));
    return error->message;
  };
  EXPECT_EQ(text(Ask(100 * kGiB)), "needs 100.0 GiB guaranteed, the quota of user anna is 80.0 GiB");
  // Of both GPUs together.
  EXPECT_EQ(text(Ask(41 * kGiB, 2)), "needs 82.0 GiB guaranteed, the quota of user anna is 80.0 GiB");
  EXPECT_EQ(text(Ask(kGiB, 3)), "needs 3 GPUs, the quota of user anna is 2");
  Request ratio = Ask(0);
  ratio.mem = MemorySize{.bytes = 0, .ratio = 0.9};
  EXPECT_EQ(text(ratio), "needs 126.0 GiB guaranteed, the quota of user anna is 80.0 GiB");
  Request exclusive = Ask(kGiB);
  exclusive.mode = Mode::kExclusive;
  EXPECT_THAT(text(exclusive), HasSubstr("needs 140.0 GiB guaranteed"));
  policy.groups["vision"].quota.tenants = 0;
  EXPECT_EQ(text(Ask(kGiB)), "the quota of group vision allows no tenant");
  // Just as much is allowed.
  policy.groups.clear();
  EXPECT_TRUE(std::holds_alternative<Placement>(Judge(policy, Ask(40 * kGiB, 2), {}, gpus)));
}

TEST(Quota, WaitsForItsOwnersTenantsAndKeepsNothing) {
  Policy policy;
  policy.users["anna"].quota = {.guaranteed_bytes = 80 * kGiB, .tenants = 2, .gpus = {}};
  const std::vector<Running> running = {Has("serve", "anna", 0, 60 * kGiB),
                                        Has("other", "ben", 0, 20 * kGiB)};
  const Decision decision = Judge(policy, Ask(30 * kGiB), running, {Gpu(0, 60 * kGiB)});
  const Wait* wait = std::get_if<Wait>(&decision);
  ASSERT_TRUE(wait);
  EXPECT_EQ(wait->reason,
            "its quota is in use: needs 30.0 GiB, user anna has 60.0 GiB of 80.0 GiB guaranteed (serve)");
  EXPECT_TRUE(wait->for_quota);
  EXPECT_TRUE(wait->wants.empty());
  EXPECT_TRUE(std::holds_alternative<Placement>(Judge(policy, Ask(20 * kGiB), running, {Gpu(0, 60 * kGiB)})));
  // Within the quota, but no room: then the GPU is kept.
  const Decision room = Judge(policy, Ask(20 * kGiB), running, {Gpu(0, 10 * kGiB)});
  EXPECT_EQ(std::get<Wait>(room).wants.size(), 1u);
}

TEST(Quota, CountsTenantsAndAllMembersOfAGroup) {
  Policy policy;
  policy.groups["vision"].quota = {.guaranteed_bytes = {}, .tenants = 2, .gpus = {}};
  const std::vector<Running> running = {Has("a", "ben", 0, 0, {"vision"}),
                                        Has("b", "chris", 0, 0, {"vision"})};
  EXPECT_EQ(std::get<Wait>(Judge(policy, Ask(0), running, {Gpu(0)})).reason,
            "its quota is in use: group vision has 2 of 2 tenants (a, b)");
  Request outsider = Ask(0);
  outsider.groups.clear();
  EXPECT_TRUE(std::holds_alternative<Placement>(Judge(policy, outsider, running, {Gpu(0)})));
}

TEST(Quota, OfEveryUserCountsEachByItselfAndNotThoseNamed) {
  Policy policy;
  policy.every_user = Rule{.quota = {.guaranteed_bytes = {}, .tenants = 1, .gpus = {}}, .priority = {}};
  const std::vector<Running> running = {Has("a", "ben", 0, 0)};
  EXPECT_TRUE(std::holds_alternative<Placement>(Judge(policy, Ask(0), running, {Gpu(0)})));
  const std::vector<Running> own = {Has("a", "anna", 0, 0)};
  EXPECT_TRUE(std::holds_alternative<Wait>(Judge(policy, Ask(0), own, {Gpu(0)})));
  policy.users["anna"];  // named, without a limit
  EXPECT_TRUE(std::holds_alternative<Placement>(Judge(policy, Ask(0), own, {Gpu(0)})));
}

TEST(Quota, OfGpusLeadsToThoseThatTheOwnerIsOn) {
  Policy policy;
  policy.users["anna"].quota.gpus = 1;
  const std::vector<Running> running = {Has("a", "anna", 1, 20 * kGiB)};
  const Decision there = Judge(policy, Ask(kGiB), running, {Gpu(0, 30 * kGiB), Gpu(1, 120 * kGiB)});
  EXPECT_EQ(std::get<Placement>(there).shares[0].gpu, Gpu(1).uuid);
  // No room there: it waits for that GPU and leaves the other to those behind.
  const Decision full = Judge(policy, Ask(130 * kGiB), running, {Gpu(0), Gpu(1, 120 * kGiB)});
  EXPECT_EQ(std::get<Wait>(full).wants, std::set{Gpu(1).uuid});
  // By name on the other one: its own tenant has to end.
  Request listed = Ask(kGiB);
  listed.gpu_list = {"0"};
  const Decision other = Judge(policy, listed, running, {Gpu(0), Gpu(1, 120 * kGiB)});
  EXPECT_EQ(std::get<Wait>(other).reason,
            "its quota is in use: needs 1 GPU, user anna is on 1 of 1 GPUs (a)");
  EXPECT_TRUE(std::get<Wait>(other).for_quota);
}

TEST(Quota, TakesSeveralGpusTogetherOrNone) {
  Policy policy;
  policy.users["anna"].quota = {.guaranteed_bytes = 100 * kGiB, .tenants = {}, .gpus = 2};
  const std::vector<Running> running = {Has("a", "anna", 2, 20 * kGiB)};
  const std::vector<GpuSnapshot> gpus = {Gpu(0), Gpu(1), Gpu(2, 120 * kGiB)};
  const Decision two = Judge(policy, Ask(40 * kGiB, 2), running, gpus);
  const auto& shares = std::get<Placement>(two).shares;
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[1].gpu, Gpu(2).uuid);  // that it is on already, and one more
  EXPECT_THAT(std::get<Wait>(Judge(policy, Ask(41 * kGiB, 2), running, gpus)).reason,
              HasSubstr("needs 82.0 GiB, user anna has 20.0 GiB of 100.0 GiB"));
}

}  // namespace
}  // namespace gpumux::core
