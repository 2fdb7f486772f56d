// SPDX-License-Identifier: Apache-2.0
//
// MPS clients side by side on the real clock: ratios of times in one run, by the
// GPU's own clock, with kernels of 5 ms. Precise times are proven in virtual
// time (sim/mps_test.cc).
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "mps_world.h"

namespace gpumux::test {
namespace {

using namespace cuda;

class SoftGpuMpsTime : public MpsTest {};

// 12 kernels of 5 ms and `blocks` blocks, all launched ahead; the time they took.
double RunMs(unsigned blocks) {
  CUevent start, end;
  CU(cuEventCreate, CUevent*, unsigned)(&start, 0);
  CU(cuEventCreate, CUevent*, unsigned)(&end, 0);
  const auto record = CU(cuEventRecord, CUevent, CUstream);
  record(start, nullptr);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(Spin(5'000'000, nullptr, blocks), CUDA_SUCCESS);
  record(end, nullptr);
  EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
  float ms = 0;
  EXPECT_EQ(CU(cuEventElapsedTime, float*, CUevent, CUevent)(&ms, start, end), CUDA_SUCCESS);
  return static_cast<double>(ms);
}

// Each process alone first, one after another; then all at once: what that took
// each, in times of being alone, is between `least` and `most`.
void Compare(const std::vector<std::function<void()>>& prepare, unsigned blocks, double least, double most) {
  std::vector<std::unique_ptr<Child>> children;
  for (const auto& before : prepare) {
    children.push_back(std::make_unique<Child>([&](const Child::Step& step) {
      before();
      ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
      ASSERT_EQ(Spin(1000), CUDA_SUCCESS);
      ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
      const double alone = RunMs(blocks);
      step.Report();
      step.Wait();
      const double together = RunMs(blocks);
      EXPECT_GE(together / alone, least) << alone << " ms alone, " << together << " together";
      EXPECT_LE(together / alone, most) << alone << " ms alone, " << together << " together";
    }));
    ASSERT_TRUE(children.back()->WaitReport());
  }
  for (auto& child : children) child->Continue();
  for (auto& child : children) EXPECT_EQ(child->Join(), 0);
}

void Nothing() {}
void Outside() { setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere", 1); }

TEST_F(SoftGpuMpsTime, FourClientsThatFitTakeNoLongerThanOne) {
  StartDaemon();
  Compare({Nothing, Nothing, Nothing, Nothing}, 33, 0.8, 1.5);
}

TEST_F(SoftGpuMpsTime, OutsideTheyTakeTurns) { Compare({Outside, Outside, Outside}, 33, 2.2, 4.5); }

TEST_F(SoftGpuMpsTime, AServersClientsTogetherTakeTurnsWithAProcessOutside) {
  StartDaemon();
  // Three that took turns would need three times as long; so they need two.
  Compare({Nothing, Nothing, Outside}, 33, 1.6, 2.6);
}

// One kernel of 40 waves, and while it runs one of a single wave by another
// client: its time as a part of the first one's.
double PartOfALongKernel(const char* priority_of_the_long) {
  int times[2];
  EXPECT_EQ(pipe(times), 0);
  const auto run = [&](unsigned blocks, const Child::Step& step, const char* priority, bool is_first) {
    setenv("CUDA_MPS_CLIENT_PRIORITY", priority, 1);
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    ASSERT_EQ(Spin(1000), CUDA_SUCCESS);
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    CUevent start, end;
    CU(cuEventCreate, CUevent*, unsigned)(&start, 0);
    CU(cuEventCreate, CUevent*, unsigned)(&end, 0);
    const auto record = CU(cuEventRecord, CUevent, CUstream);
    step.Report();
    step.Wait();
    CUevent before;
    CU(cuEventCreate, CUevent*, unsigned)(&before, 0);
    ASSERT_EQ(is_first ? Spin(1'000'000) : CUDA_SUCCESS, CUDA_SUCCESS);
    record(before, nullptr);
    record(start, nullptr);
    ASSERT_EQ(Spin(5'000'000, nullptr, blocks), CUDA_SUCCESS);
    record(end, nullptr);
    // What was sent with a kernel that has ended is there: no other comes before it.
    ASSERT_EQ(CU(cuEventSynchronize, CUevent)(before), CUDA_SUCCESS);
    step.Report();
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    float ms = 0;
    ASSERT_EQ(CU(cuEventElapsedTime, float*, CUevent, CUevent)(&ms, start, end), CUDA_SUCCESS);
    ASSERT_EQ(write(times[1], &ms, sizeof(ms)), static_cast<ssize_t>(sizeof(ms)));
  };
  Child with_many([&](const Child::Step& step) { run(40 * 264, step, priority_of_the_long, true); });
  Child with_one([&](const Child::Step& step) { run(264, step, "0", false); });
  EXPECT_TRUE(with_many.WaitReport() && with_one.WaitReport());
  with_many.Continue();
  EXPECT_TRUE(with_many.WaitReport());
  with_one.Continue();
  EXPECT_EQ(with_one.Join() + with_many.Join(), 0);
  float ms[2] = {};
  EXPECT_EQ(read(times[0], ms, sizeof(ms)), static_cast<ssize_t>(sizeof(ms)));
  close(times[0]);
  close(times[1]);
  return static_cast<double>(std::min(ms[0], ms[1]) / std::max(ms[0], ms[1]));
}

// At equal priority the blocks that wait longer go first, all of them; below
// normal they let others pass.
TEST_F(SoftGpuMpsTime, BlocksOfLowPriorityLetOthersPass) {
  StartDaemon();
  EXPECT_GT(PartOfALongKernel("0"), 0.5);
  EXPECT_LT(PartOfALongKernel("1"), 0.25);
}

TEST_F(SoftGpuMpsTime, APercentageMakesWaves) {
  StartDaemon();
  InChild([] {
    setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25", 1);
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    ASSERT_EQ(Spin(1000), CUDA_SUCCESS);
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    // 32 SMs hold 64 blocks; 132 take three waves.
    const double one = RunMs(64), three = RunMs(132);
    EXPECT_NEAR(three / one, 3, 0.4) << one << " and " << three << " ms";
  });
}

}  // namespace
}  // namespace gpumux::test
