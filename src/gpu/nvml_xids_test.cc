// SPDX-License-Identifier: Apache-2.0
//
// Xids as an event set of the test's own tells them.
#include "gpu/nvml_xids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <string>

namespace gpumux::gpu {
namespace {

using namespace gpumux::nvml;  // NOLINT: the binary interface's own names
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

nvmlDevice_t Handle(uintptr_t number) { return reinterpret_cast<nvmlDevice_t>(number); }

// The library's side.
struct Library {
  std::deque<nvmlEventData_t> events;
  std::vector<nvmlDevice_t> watched;
  nvmlDevice_t refuses = nullptr;
  nvmlReturn_t after = NVML_ERROR_TIMEOUT;  // what is answered when there is no event
  int sets = 0, made = 0;
  unsigned long long types = 0;
};
Library* library = nullptr;

nvmlReturn_t Create(nvmlEventSet_t* set) {
  ++library->sets;
  *set = reinterpret_cast<nvmlEventSet_t>(static_cast<uintptr_t>(++library->made));
  return NVML_SUCCESS;
}
nvmlReturn_t Free(nvmlEventSet_t) { return --library->sets, NVML_SUCCESS; }
nvmlReturn_t Register(nvmlDevice_t gpu, unsigned long long types, nvmlEventSet_t) {
  if (gpu == library->refuses) return NVML_ERROR_NOT_SUPPORTED;
  library->watched.push_back(gpu);
  library->types = types;
  return NVML_SUCCESS;
}
nvmlReturn_t WaitFor(nvmlEventSet_t, nvmlEventData_t* event, unsigned timeout_ms) {
  EXPECT_EQ(timeout_ms, 0u);
  if (library->events.empty()) return library->after;
  *event = library->events.front();
  library->events.pop_front();
  return NVML_SUCCESS;
}

class NvmlXidsTest : public ::testing::Test {
 protected:
  NvmlXidsTest() {
    library = &library_;
    for (uint8_t i = 0; i < 2; ++i) {
      gpus_.push_back({.uuid = {}, .index = i, .name = {}, .pci_bus_id = {}});
      gpus_.back().uuid.bytes = {i};
    }
  }
  void Report(nvmlDevice_t gpu, unsigned long long xid,
              unsigned long long type = kEventTypeXidCriticalError) {
    library_.events.push_back({gpu, type, xid, ~0U, ~0U});
  }
  // GPU (the first byte of its UUID) and number.
  std::vector<std::pair<int, unsigned>> Take(NvmlXids& xids) {
    std::vector<std::pair<int, unsigned>> found;
    for (const Xid& each : xids.Take(gpus_, {Handle(0x10), Handle(0x20)}))
      found.emplace_back(each.gpu.bytes[0], each.number);
    return found;
  }
  NvmlXids Of(const std::string& wait, const std::string& lacks = "") {
    const std::map<std::string, void*> names = {
        {"nvmlEventSetCreate", reinterpret_cast<void*>(Create)},
        {"nvmlEventSetFree", reinterpret_cast<void*>(Free)},
        {"nvmlDeviceRegisterEvents", reinterpret_cast<void*>(Register)},
        {wait, reinterpret_cast<void*>(WaitFor)},
    };
    return NvmlXids([&](const char* name) {
      const auto found = names.find(name);
      return name == lacks || found == names.end() ? nullptr : found->second;
    });
  }

  Library library_;
  std::vector<Device> gpus_;
};

TEST_F(NvmlXidsTest, AreThoseSinceTheLastCall) {
  NvmlXids xids = Of("nvmlEventSetWait_v2");
  EXPECT_THAT(Take(xids), IsEmpty());
  EXPECT_THAT(library_.watched, ElementsAre(Handle(0x10), Handle(0x20)));
  EXPECT_EQ(library_.types, 8u);
  Report(Handle(0x20), 31);
  Report(Handle(0x10), 79);
  EXPECT_THAT(Take(xids), ElementsAre(Pair(1, 31), Pair(0, 79)));
  EXPECT_THAT(Take(xids), IsEmpty());
  EXPECT_EQ(library_.made, 1);
  xids.End();
  EXPECT_EQ(library_.sets, 0);
}

TEST_F(NvmlXidsTest, OfALibraryWithoutTheNewerCallAreTheSame) {
  NvmlXids xids = Of("nvmlEventSetWait");
  Report(Handle(0x10), 13);
  EXPECT_THAT(Take(xids), ElementsAre(Pair(0, 13)));
}

TEST_F(NvmlXidsTest, AreNoneWhereACallIsLacking) {
  for (const char* lacks :
       {"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"}) {
    NvmlXids xids = Of("nvmlEventSetWait_v2", lacks);
    Report(Handle(0x10), 31);
    EXPECT_THAT(Take(xids), IsEmpty()) << lacks;
  }
  EXPECT_EQ(library_.made, 0);
}

TEST_F(NvmlXidsTest, OfOtherGpusAreThereWhenOneRefuses) {
  library_.refuses = Handle(0x10);
  NvmlXids xids = Of("nvmlEventSetWait_v2");
  Report(Handle(0x20), 31);
  EXPECT_THAT(Take(xids), ElementsAre(Pair(1, 31)));
  EXPECT_THAT(library_.watched, ElementsAre(Handle(0x20)));
}

TEST_F(NvmlXidsTest, AreNotWhatIsNoXidOrOfNoGpuHere) {
  NvmlXids xids = Of("nvmlEventSetWait_v2");
  Report(Handle(0x10), 31, 0x4);
  Report(Handle(0x30), 31);
  Report(Handle(0x10), 1ull << 40);
  Report(Handle(0x10), 48);
  EXPECT_THAT(Take(xids), ElementsAre(Pair(0, 48)));
}

TEST_F(NvmlXidsTest, KeepNobodyWhenTheyDoNotEndOrFail) {
  NvmlXids xids = Of("nvmlEventSetWait_v2");
  for (int i = 0; i < 100; ++i) Report(Handle(0x10), 31);
  EXPECT_EQ(Take(xids).size(), 64u);
  EXPECT_EQ(Take(xids).size(), 36u);
  library_.after = NVML_ERROR_GPU_IS_LOST;
  Report(Handle(0x10), 79);
  EXPECT_THAT(Take(xids), ElementsAre(Pair(0, 79)));
  EXPECT_THAT(Take(xids), IsEmpty());
}

TEST_F(NvmlXidsTest, AreWatchedAnewAfterTheEnd) {
  NvmlXids xids = Of("nvmlEventSetWait_v2");
  Take(xids);
  xids.End();
  Report(Handle(0x10), 31);
  EXPECT_THAT(Take(xids), ElementsAre(Pair(0, 31)));
  EXPECT_EQ(library_.made, 2);
  EXPECT_EQ(library_.watched.size(), 4u);
  EXPECT_EQ(library_.sets, 1);
}

}  // namespace
}  // namespace gpumux::gpu
