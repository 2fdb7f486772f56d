// SPDX-License-Identifier: Apache-2.0
//
// The model on the real clock: kernels of 5 ms, so that the wake-up times of a
// small machine stay within the tolerance (10 %). Precise times are proven in
// virtual time (sim/gpu_model_test.cc).
#include <unistd.h>

#include <memory>
#include <vector>

#include "child.h"
#include "cuda_functions.h"

namespace gpumux::test {
namespace {

using namespace cuda;
class SoftGpuTime : public SoftGpuTest {};

// Launches `count` kernels of 5 ms and waits for all; the time it took, by the
// GPU's own clock.
double RunMs(int count) {
  CUevent start, end;
  const auto create = CU(cuEventCreate, CUevent*, unsigned);
  const auto record = CU(cuEventRecord, CUevent, CUstream);
  create(&start, 0);
  create(&end, 0);
  record(start, nullptr);
  for (int i = 0; i < count; ++i) EXPECT_EQ(Spin(5'000'000), CUDA_SUCCESS);
  record(end, nullptr);
  EXPECT_EQ(Synchronize(), CUDA_SUCCESS);
  float ms = 0;
  EXPECT_EQ(CU(cuEventElapsedTime, float*, CUevent, CUevent)(&ms, start, end), CUDA_SUCCESS);
  return static_cast<double>(ms);
}

TEST_F(SoftGpuTime, AloneAKernelTakesItsTime) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    RunMs(1);
    EXPECT_NEAR(RunMs(60), 300, 30);
    nvml::nvmlUtilization_t rates;
    NVML(nvmlDeviceGetUtilizationRates, nvml::nvmlDevice_t, nvml::nvmlUtilization_t*)(Gpu0(), &rates);
    EXPECT_GE(rates.gpu, 25u);
    EXPECT_LE(rates.gpu, 45u);
  });
}

TEST_F(SoftGpuTime, TwoProcessesTakeTurns) {
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 2; ++i) {
    children.push_back(std::make_unique<Child>([](const Child::Step& step) {
      ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
      RunMs(1);
      step.Report();
      step.Wait();
      // 80 kernels each, in turns of 2.2 ms that cost 0.135 ms: 849 ms for both.
      EXPECT_NEAR(RunMs(80), 849, 85);
    }));
  }
  for (auto& child : children) ASSERT_TRUE(child->WaitReport());
  for (auto& child : children) child->Continue();
  for (auto& child : children) EXPECT_EQ(child->Join(), 0);
}

TEST_F(SoftGpuTime, StreamsOfOneProcessOverlap) {
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    RunMs(1);
    // They begin together, when all has been launched, and the GPU's own clock says how long it took.
    CUevent start, ends[4];
    const auto create = CU(cuEventCreate, CUevent*, unsigned);
    const auto record = CU(cuEventRecord, CUevent, CUstream);
    create(&start, 0);
    ASSERT_EQ(Spin(200'000'000), CUDA_SUCCESS);
    record(start, nullptr);
    for (CUevent& end : ends) {
      CUstream stream;
      ASSERT_EQ(CU(cuStreamCreate, CUstream*, unsigned)(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      ASSERT_EQ(CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(stream, start, 0), CUDA_SUCCESS);
      for (int k = 0; k < 20; ++k) ASSERT_EQ(Spin(5'000'000, stream, 66), CUDA_SUCCESS);
      create(&end, 0);
      record(end, stream);
    }
    ASSERT_EQ(Synchronize(), CUDA_SUCCESS);
    for (const CUevent end : ends) {
      float ms = 0;
      ASSERT_EQ(CU(cuEventElapsedTime, float*, CUevent, CUevent)(&ms, start, end), CUDA_SUCCESS);
      EXPECT_GE(ms, 99) << "66 of 264 places each";
      EXPECT_LT(ms, 200) << "one after another they would take 400 ms";
    }
  });
}

TEST_F(SoftGpuTime, ADeadNeighbourGivesTheGpuBack) {
  Child neighbour([](const Child::Step& step) {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    ASSERT_EQ(Spin(3'000'000'000), CUDA_SUCCESS);
    step.Report();
    step.Wait();
  });
  ASSERT_TRUE(neighbour.WaitReport());
  neighbour.Kill();
  neighbour.Join();
  InChild([] {
    ASSERT_EQ(InitWithContext(), CUDA_SUCCESS);
    RunMs(1);
    EXPECT_NEAR(RunMs(40), 200, 20);
  });
}

}  // namespace
}  // namespace gpumux::test
