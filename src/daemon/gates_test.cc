// SPDX-License-Identifier: Apache-2.0
#include "daemon/gates.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "daemon/testing/fake_nvml.h"
#include "gpumux/abi/gate.h"

namespace gpumux::daemon {
namespace {

class GatesTest : public ::testing::Test {
 protected:
  Tenant& AddTenant(const std::string& id, core::Urgency urgency) {
    auto tenant = std::make_unique<Tenant>();
    tenant->id = id;
    tenant->gpus = {0};
    tenant->request.ask.urgency = urgency;
    tenant->pages = TenantPages::Create(id, {{.uuid = {}, .device_total_bytes = 1, .context_bytes = 1}},
                                        /*strict=*/false, /*simulated=*/true)
                        .value();
    return tenants_.Add(std::move(tenant));
  }
  Member& AddMember(Tenant& tenant) {
    return tenants_.AddMember(tenant, {.pid = ++last_pid_, .start_time = 1});
  }
  Gates::Answer Ask(Tenant& tenant, Member& member) {
    std::vector<UniqueFd> none;
    return gates_.Ask(tenant, member, 0, none).value();
  }

  EventLoop loop_;
  ManualClock clock_;
  FakeFigures& figures_ = *FakeFigures::Create();
  FakeNvml nvml_{figures_, 1};
  EventLog events_{"", clock_};
  Machine machine_{
      {.simulated = true, .spec = "", .dir = "", .libraries_dir = ""}, nvml_, loop_, events_, ""};
  Tenants tenants_;
  GateTimes times_;
  Gates gates_{machine_, tenants_, times_};
  pid_t last_pid_ = 1'000'000;
};

TEST_F(GatesTest, ABitIsGivenAgainAsLateAsCanBe) {
  Tenant& owner = AddTenant("t-owner", core::Urgency::kLatency);
  Member& first = AddMember(owner);
  EXPECT_EQ(Ask(owner, first).reply.owner_bit, 0u);
  EXPECT_EQ(Ask(owner, first).reply.owner_bit, 0u) << "it has one";
  gates_.Died(first);
  for (unsigned bit = 1; bit < GPUMUX_GATE_OWNERS; ++bit)
    EXPECT_EQ(Ask(owner, AddMember(owner)).reply.owner_bit, bit);
  EXPECT_EQ(Ask(owner, AddMember(owner)).reply.owner_bit, 0u);
}

TEST_F(GatesTest, OneOwnerMoreThanThereAreBitsHasNone) {
  Tenant& owner = AddTenant("t-owner", core::Urgency::kLatency);
  Member* some = nullptr;
  for (unsigned i = 0; i < GPUMUX_GATE_OWNERS; ++i) {
    Member& member = AddMember(owner);
    EXPECT_NE(Ask(owner, member).reply.owner_bit, GPUMUX_GATE_NO_BIT);
    if (i == 17) some = &member;
  }
  const Gates::Answer answer = Ask(owner, AddMember(owner));
  EXPECT_EQ(answer.reply.owner_bit, GPUMUX_GATE_NO_BIT);
  EXPECT_EQ(answer.reply.total, 0u);
  gates_.Died(*some);
  EXPECT_EQ(Ask(owner, AddMember(owner)).reply.owner_bit, 17u);
}

// Nobody is left there who could open it.
TEST_F(GatesTest, NobodyClosesTheGateOfADeadProcess) {
  Tenant& owner = AddTenant("t-owner", core::Urgency::kLatency);
  Tenant& other = AddTenant("t-other", core::Urgency::kBestEffort);
  Member& gated = AddMember(other);
  Ask(other, gated);
  const Gates::Answer answer = Ask(owner, AddMember(owner));
  ASSERT_EQ(answer.reply.total, 1u);
  ASSERT_EQ(answer.fds.size(), 2u);
  auto* page = static_cast<gpumux_gate_page*>(
      mmap(nullptr, sizeof(gpumux_gate_page), PROT_READ | PROT_WRITE, MAP_SHARED, answer.fds[1], 0));
  ASSERT_NE(page, MAP_FAILED);
  gpumux_gate_close(page, 1);
  EXPECT_EQ(page->closed, 1u);
  gates_.Died(gated);
  EXPECT_EQ(page->closed, 0u);
  gpumux_gate_close(page, 1);
  EXPECT_EQ(page->closed, 0u);
  munmap(page, sizeof(gpumux_gate_page));
}

}  // namespace
}  // namespace gpumux::daemon
