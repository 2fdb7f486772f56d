// SPDX-License-Identifier: Apache-2.0
#include "daemon/xids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/testing/fake_nvml.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

class XidsTest : public ::testing::Test {
 protected:
  XidsTest() { machine_.Start({}); }

  gpu::Xid Of(size_t gpu, unsigned number) const { return {machine_.gpus()[gpu]->device.uuid, number}; }
  // The texts since the last call.
  std::vector<std::string> Told() {
    std::vector<std::string> texts;
    for (const Event& event : events_.kept()) {
      if (event.id > seen_ && event.kind == EventKind::kGpuXid) texts.push_back(event.text);
    }
    seen_ = events_.last_id();
    return texts;
  }

  ManualClock clock_;
  FakeFigures& figures_ = *FakeFigures::Create();
  FakeNvml nvml_{figures_, 2};
  EventLoop loop_;
  EventLog events_{"", clock_};
  Machine machine_{{}, nvml_, loop_, events_, ""};
  Xids xids_{machine_, events_, clock_};
  uint64_t seen_ = 0;
};

TEST_F(XidsTest, AreEventsOfTheirGpu) {
  xids_.Take({Of(1, 31), Of(0, 9999)});
  EXPECT_EQ(events_.kept().back().gpus, std::vector{machine_.gpus()[0]->device.uuid});
  EXPECT_EQ(SeverityOf(events_.kept().back().kind), Severity::kError);
  EXPECT_THAT(Told(),
              ElementsAre("GPU 1: Xid 31 (MMU fault: an illegal access of a program)", "GPU 0: Xid 9999"));
}

TEST_F(XidsTest, OfAGpuThatIsNotHereAreNone) {
  xids_.Take({{gpu::Uuid{}, 31}});
  EXPECT_THAT(Told(), ElementsAre());
}

TEST_F(XidsTest, ThatComeOverAndOverAreToldTogether) {
  xids_.Take({Of(0, 13), Of(0, 13)});
  EXPECT_THAT(Told(), ElementsAre("GPU 0: Xid 13 (exception in a kernel: an error of a program)"));
  for (int i = 0; i < 59; ++i) {
    clock_.Advance(1s);
    xids_.Take({Of(0, 13)});
  }
  EXPECT_THAT(Told(), ElementsAre());
  // Another number, and another GPU, at once.
  xids_.Take({Of(0, 79), Of(1, 13)});
  EXPECT_EQ(Told().size(), 2u);
  clock_.Advance(1s);
  xids_.Take({});
  EXPECT_THAT(Told(), ElementsAre("GPU 0: Xid 13 (exception in a kernel: an error of a program), 60 more in "
                                  "the last minute"));
  EXPECT_EQ(machine_.gpus()[0]->xids[13], 61u);
  // After a minute without one, the next is told at once.
  clock_.Advance(60s);
  xids_.Take({});
  EXPECT_THAT(Told(), ElementsAre());
  xids_.Take({Of(0, 13)});
  EXPECT_EQ(Told().size(), 1u);
}

}  // namespace
}  // namespace gpumux::daemon
