// SPDX-License-Identifier: Apache-2.0
//
// gpumux-workload: see README.md and --help.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "base/unique_fd.h"
#include "workload/allocations.h"
#include "workload/driver.h"
#include "workload/ending.h"
#include "workload/frameworks.h"
#include "workload/kernels.h"
#include "workload/load.h"
#include "workload/memory_report.h"
#include "workload/options.h"
#include "workload/report.h"

namespace gpumux::workload {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kRefused = 3;

using cuda::CUDA_SUCCESS;

// One run of the program, from cuInit to the report.
class Run {
 public:
  Run(const Driver& driver, const Options& options)
      : driver_(driver), options_(options), memory_(options.report_memory) {}

  int Main() {
    const Status status = Work();
    if (!status) {
      report_.error = status.error().message;
      std::fprintf(stderr, "gpumux-workload: %s\n", report_.error.c_str());
    }
    // The worst of what happened: a failure over a refusal.
    const bool context_refused = refused_ && !context_;
    if ((!status && !context_refused) || (report_.verified && !*report_.verified)) {
      report_.exit_status = kFailed;
    } else if (refused_) {
      report_.exit_status = kRefused;
    } else if (!report_.fault_result.empty()) {
      report_.exit_status = kFailed;
    }
    report_.steps = memory_.steps();
    std::fputs((options_.json ? ToJson(report_, options_) + "\n" : ToText(report_, options_)).c_str(),
               stdout);
    std::fflush(stdout);
    return EndProcess(driver_, kernels_, options_.end, report_.exit_status);
  }

 private:
  Status Work() {
    if (const Status s = OpenContext(); !s) return s;
    if (const Status s = TakeMemory(); !s) return s;
    if (options_.touch) {
      for (const Holdings::Range& range : holdings_->ranges()) {
        if (const auto r = driver_.MemsetD8(range.ptr, 0x5a, range.bytes); r != CUDA_SUCCESS)
          return DriverError(driver_, "cuMemsetD8", r);
      }
      if (const auto r = driver_.CtxSynchronize(); r != CUDA_SUCCESS)
        return DriverError(driver_, "cuCtxSynchronize", r);
      memory_.After(driver_, "touched");
    }
    if (options_.load || options_.verify || options_.end == Ending::kFault || options_.end == Ending::kHang) {
      auto kernels = LoadKernels(driver_);
      if (!kernels) return tl::unexpected(kernels.error());
      kernels_ = *kernels;
      memory_.After(driver_, "module");
    }
    if (options_.verify) {
      for (const Holdings::Range& range : holdings_->ranges()) {
        if (const Status s = Verify(driver_, kernels_, range.ptr, range.bytes); !s) {
          report_.verified = false;
          return s;
        }
      }
      // Nothing that has an address was taken: nothing was compared.
      if (!holdings_->ranges().empty()) report_.verified = true;
      memory_.After(driver_, "verified");
    }
    if (const Status s = AnnounceReady(); !s) return s;
    if (options_.load) {
      auto load = RunLoad(driver_, context_, kernels_, options_);
      if (!load) return tl::unexpected(load.error());
      report_.load = *load;
      memory_.After(driver_, "load");
    }
    size_t free_bytes = 0, total_bytes = 0;
    if (const auto r = driver_.MemGetInfo(&free_bytes, &total_bytes); r != CUDA_SUCCESS)
      return DriverError(driver_, "cuMemGetInfo", r);
    report_.free_bytes = free_bytes;
    report_.total_bytes = total_bytes;
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.hold_seconds));
    if (options_.end == Ending::kFault) report_.fault_result = driver_.Name(Fault(driver_, kernels_));
    if (options_.end == Ending::kReturn) return GiveBack();
    return {};
  }

  Status OpenContext() {
    memory_.After(driver_, "start");
    if (const auto r = driver_.Init(0); r != CUDA_SUCCESS) return DriverError(driver_, "cuInit", r);
    if (const auto r = driver_.DeviceGet(&device_, options_.device); r != CUDA_SUCCESS)
      return DriverError(driver_, "cuDeviceGet", r);
    char name[128] = "";
    driver_.DeviceGetName(name, sizeof name, device_);
    report_.device_name = name;
    memory_.FollowDevice(driver_, device_);
    memory_.After(driver_, "init");
    if (const auto r = driver_.DevicePrimaryCtxRetain(&context_, device_); r != CUDA_SUCCESS) {
      refused_ = IsRefusal(r);
      return refused_ ? Refuse("cuDevicePrimaryCtxRetain", r)
                      : DriverError(driver_, "cuDevicePrimaryCtxRetain", r);
    }
    if (const auto r = driver_.CtxSetCurrent(context_); r != CUDA_SUCCESS)
      return DriverError(driver_, "cuCtxSetCurrent", r);
    holdings_.emplace(driver_, device_);
    memory_.After(driver_, "context");
    return {};
  }

  // The context itself did not fit: nothing more can be tried.
  tl::unexpected<Error> Refuse(const char* call, cuda::CUresult result) {
    Outcome outcome;
    outcome.result = result;
    outcome.call = call;
    outcome.attempts = 1;
    report_.alloc = outcome;
    report_.alloc_result = driver_.Name(result);
    return DriverError(driver_, call, result);
  }

  Status TakeMemory() {
    if (!options_.alloc && options_.like == Framework::kNone) return {};
    size_t free_bytes = 0, total_bytes = 0;
    if (const auto r = driver_.MemGetInfo(&free_bytes, &total_bytes); r != CUDA_SUCCESS)
      return DriverError(driver_, "cuMemGetInfo", r);
    uint64_t size = 0;
    if (options_.alloc) {
      size = options_.alloc->bytes
                 ? options_.alloc->bytes
                 : static_cast<uint64_t>(options_.alloc->ratio * static_cast<double>(total_bytes));
    }
    Outcome outcome;
    if (options_.like != Framework::kNone) {
      outcome = TakeLike(options_.like, *holdings_, total_bytes, free_bytes, size);
    } else {
      for (unsigned i = 0; i < options_.alloc_count; ++i) {
        if (!holdings_->Take(options_.alloc_api, size, outcome)) break;
      }
    }
    report_.alloc = outcome;
    report_.alloc_result = driver_.Name(outcome.result);
    memory_.After(driver_, "taken");
    refused_ = IsRefusal(outcome.result);
    if (!refused_ && outcome.result != CUDA_SUCCESS)
      return DriverError(driver_, outcome.call, outcome.result);
    return {};
  }

  Status AnnounceReady() {
    if (options_.ready_file.empty()) return {};
    const UniqueFd fd(::open(options_.ready_file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    if (!fd) return Fail(Code::kInternal, fmt::format("cannot create {}", options_.ready_file));
    return {};
  }

  Status GiveBack() {
    const Outcome freed = holdings_->FreeAll();
    if (freed.result != CUDA_SUCCESS) return DriverError(driver_, freed.call, freed.result);
    if (kernels_.module) {
      if (const auto r = driver_.ModuleUnload(kernels_.module); r != CUDA_SUCCESS)
        return DriverError(driver_, "cuModuleUnload", r);
      kernels_ = {};
    }
    memory_.After(driver_, "freed");
    if (const auto r = driver_.DevicePrimaryCtxRelease(device_); r != CUDA_SUCCESS) {
      return DriverError(driver_, "cuDevicePrimaryCtxRelease", r);
    }
    memory_.After(driver_, "released");
    return {};
  }

  const Driver& driver_;
  const Options& options_;
  MemoryReport memory_;
  Report report_;
  cuda::CUdevice device_ = 0;
  cuda::CUcontext context_ = nullptr;
  Kernels kernels_;
  std::optional<Holdings> holdings_;
  bool refused_ = false;
};

int Main(int argc, char** argv) {
  const auto line = ParseCommandLine(argc, argv);
  if (!line) {
    std::fprintf(stderr, "gpumux-workload: %s\n", line.error().ToString().c_str());
    return kUsage;
  }
  if (!line->help.empty()) {
    std::fputs(line->help.c_str(), stdout);
    return 0;
  }
  if (!line->options.ipc_open.empty()) return OpenIpcHandle(line->options.ipc_open);
  const auto driver = Driver::Open();
  if (!driver) {
    std::fprintf(stderr, "gpumux-workload: %s\n", driver.error().ToString().c_str());
    return kFailed;
  }
  return Run(*driver, line->options).Main();
}

}  // namespace
}  // namespace gpumux::workload

int main(int argc, char** argv) { return gpumux::workload::Main(argc, argv); }
