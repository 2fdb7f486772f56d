// SPDX-License-Identifier: Apache-2.0
//
// Whose time counts as idle, and what is done about it, over pages and a clock
// of the test's own.
#include "daemon/idle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/units.h"
#include "daemon/testing/fake_nvml.h"
#include "gpumux/abi/pages.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class IdleTest : public ::testing::Test {
 protected:
  IdleTest() {
    machine_.Start({});
    reclaim_.allocating = [](core::ProcessKey) { return false; };
    reclaim_.send = [this](uint64_t session, uint32_t, unsigned, uint64_t bytes) {
      asked_.emplace_back(session, bytes);
      return true;
    };
    policy_.idle = {.action = core::IdleAction::kNotify, .after = 60s};
    tenant_ = &AddTenant();
    member_ = &AddMember(*tenant_);
  }

  ~IdleTest() override { munmap(page_, GPUMUX_PAGE_BYTES); }

  Tenant& AddTenant() {
    auto tenant = std::make_unique<Tenant>();
    tenant->id = "t-one";
    tenant->request.ask.name = "note";
    tenant->gpus = {0};
    tenant->shares = {
        {.gpu = machine_.gpus()[0]->device.uuid, .guaranteed_bytes = 8 * kGiB, .limit_bytes = 8 * kGiB}};
    EXPECT_TRUE(machine_.gpus()[0]->ledger.AddTenant("t-one", 8 * kGiB, 8 * kGiB));
    return tenants_.Add(std::move(tenant));
  }
  // A process with a context, whose guard is in force.
  Member& AddMember(Tenant& tenant) {
    Member& member = tenants_.AddMember(tenant, {.pid = 1'000'001, .start_time = 1});
    member.page = ProcessPage::Create().value();
    auto* page = static_cast<gpumux_process_page*>(
        mmap(nullptr, GPUMUX_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, member.page->fd(), 0));
    EXPECT_NE(page, MAP_FAILED);
    page->flags = GPUMUX_GUARD_IN_FORCE;
    page_ = page;
    member.gpus.resize(1);
    member.gpus[0].contexts = 1;
    EXPECT_TRUE(machine_.gpus()[0]->ledger.AddProcess("t-one", member.key));
    return member;
  }
  void Hold(uint64_t bytes) {
    machine_.gpus()[0]->ledger.AdoptCredit("t-one", member_->key, bytes);
    page_->gpus[0].committed_bytes = bytes;
  }
  void After(std::chrono::nanoseconds time) {
    clock_.Advance(time);
    watch_.Tick();
  }
  std::vector<std::string> Texts(EventKind kind) const {
    std::vector<std::string> texts;
    for (const Event& event : events_.kept())
      if (event.kind == kind) texts.push_back(event.text);
    return texts;
  }

  EventLoop loop_;
  ManualClock clock_;
  FakeFigures& figures_ = *FakeFigures::Create();
  FakeNvml nvml_{figures_, 1};
  EventLog events_{"", clock_};
  Machine machine_{{.simulated = true, .spec = "", .dir = std::to_string(::getpid()), .libraries_dir = ""},
                   nvml_,
                   loop_,
                   events_,
                   ""};
  Tenants tenants_;
  Reclaim reclaim_{machine_, tenants_, events_, clock_};
  core::Policy policy_;
  IdleWatch watch_{machine_, tenants_, reclaim_, events_, clock_, policy_};
  std::vector<std::pair<uint64_t, uint64_t>> asked_;
  Tenant* tenant_ = nullptr;
  Member* member_ = nullptr;
  gpumux_process_page* page_ = nullptr;
};

TEST_F(IdleTest, IsTheTimeSinceALaunchWasSeen) {
  page_->gpus[0].launches = 5;
  After(0s);
  EXPECT_EQ(tenant_->idle.Lasted(), 0s);
  After(30s);
  EXPECT_EQ(tenant_->idle.Lasted(), 30s);
  page_->gpus[0].launches = 6;
  After(1s);
  EXPECT_EQ(tenant_->idle.Lasted(), 0s);
}

TEST_F(IdleTest, IsNotKnownWithoutAGuardThatCounts) {
  After(0s);
  page_->flags = 0;
  After(10s);
  EXPECT_EQ(tenant_->idle.Lasted(), std::nullopt);
  EXPECT_THAT(tenant_->idle_unknown, HasSubstr("no guard in force"));
  page_->flags = GPUMUX_GUARD_IN_FORCE;
  After(10s);
  EXPECT_EQ(tenant_->idle.Lasted(), 0s) << "what was before is not known";
  member_->page.reset();
  member_->gpus[0].own_bytes = kGiB;
  After(1s);
  EXPECT_EQ(tenant_->idle.Lasted(), std::nullopt);
}

TEST_F(IdleTest, IsNothingWithoutMemory) {
  member_->gpus[0].contexts = 0;
  After(10s);
  EXPECT_EQ(tenant_->idle.Lasted(), std::nullopt);
  EXPECT_EQ(tenant_->idle_unknown, "it holds no memory of a GPU");
  tenant_->reservation = true;
  After(1s);
  EXPECT_THAT(tenant_->idle_unknown, HasSubstr("reservation"));
}

TEST_F(IdleTest, IsToldOnceAStretch) {
  Hold(3 * kGiB);
  After(0s);
  After(59s);
  EXPECT_TRUE(Texts(EventKind::kIdle).empty());
  After(1s);
  ASSERT_EQ(Texts(EventKind::kIdle).size(), 1u);
  EXPECT_EQ(Texts(EventKind::kIdle)[0], "holds 3.0 GiB and has launched no kernel for 1m00s");
  After(3600s);
  EXPECT_EQ(Texts(EventKind::kIdle).size(), 1u);
  EXPECT_TRUE(Texts(EventKind::kIdleOver).empty());
  ++page_->gpus[0].launches;
  After(1s);
  EXPECT_EQ(Texts(EventKind::kIdleOver), std::vector<std::string>{"launches kernels again"});
  After(60s);
  EXPECT_EQ(Texts(EventKind::kIdle).size(), 2u);
  EXPECT_EQ(Texts(EventKind::kIdleOver).size(), 1u);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(IdleTest, IsNoEventWhileThePolicyIsOff) {
  policy_.idle.action = core::IdleAction::kOff;
  After(0s);
  After(24h);
  EXPECT_EQ(tenant_->idle.Lasted(), 24h);
  EXPECT_TRUE(Texts(EventKind::kIdle).empty());
  // As a configuration that is read again.
  policy_.idle.action = core::IdleAction::kNotify;
  After(1s);
  EXPECT_EQ(Texts(EventKind::kIdle).size(), 1u);
}

TEST_F(IdleTest, WhoSaidSoIsAskedOnceAStretchForWhatItCaches) {
  policy_.idle.action = core::IdleAction::kReclaim;
  Hold(3 * kGiB);
  reclaim_.Listen(77, *tenant_, member_->key);
  After(0s);
  After(60s);
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_EQ(asked_[0], std::make_pair(uint64_t{77}, 3 * kGiB));
  EXPECT_THAT(Texts(EventKind::kIdle).at(0), HasSubstr("1 process(es) of it were asked"));
  EXPECT_EQ(tenant_->reclaims.asked, 1u);
  page_->gpus[0].committed_bytes = kGiB;
  EXPECT_TRUE(reclaim_.Done(77, 1));
  EXPECT_EQ(tenant_->reclaims.given_bytes, 2 * kGiB);
  After(3600s);
  EXPECT_EQ(asked_.size(), 1u);
  ++page_->gpus[0].launches;
  After(1s);
  After(60s);
  EXPECT_EQ(asked_.size(), 2u);
}

TEST_F(IdleTest, WhoDidNotSaySoIsNotAsked) {
  policy_.idle.action = core::IdleAction::kReclaim;
  Hold(3 * kGiB);
  After(0s);
  After(60s);
  EXPECT_TRUE(asked_.empty());
  EXPECT_THAT(Texts(EventKind::kIdle).at(0), HasSubstr("no process of it can be asked"));
}

}  // namespace
}  // namespace gpumux::daemon
