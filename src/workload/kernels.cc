// SPDX-License-Identifier: Apache-2.0
#include "workload/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace gpumux::workload {

// `spin` sums the steps of the global timer and leaves out those above 20 us:
// no step is so long while it runs (the timer moves by 1 us or less), so they
// are the times in which another context had the GPU. What it takes is then the
// same whether or not it shares the GPU, as with a kernel that computes.
const std::string_view kKernelsPtx = R"(
.version 7.8
.target sm_80
.address_size 64

.visible .entry spin(.param .u64 spin_ns)
{
  .reg .pred %p<3>;
  .reg .b64 %rd<7>;
  ld.param.u64 %rd1, [spin_ns];
  mov.u64 %rd2, 0;
  mov.u64 %rd3, %globaltimer;
SPIN_LOOP:
  setp.ge.u64 %p1, %rd2, %rd1;
  @%p1 bra SPIN_DONE;
  mov.u64 %rd4, %globaltimer;
  sub.u64 %rd5, %rd4, %rd3;
  mov.u64 %rd3, %rd4;
  setp.gt.u64 %p2, %rd5, 20000;
  @%p2 bra SPIN_LOOP;
  add.u64 %rd2, %rd2, %rd5;
  bra SPIN_LOOP;
SPIN_DONE:
  ret;
}

.visible .entry fill(.param .u64 fill_ptr, .param .u32 fill_value, .param .u64 fill_count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [fill_ptr];
  ld.param.u32 %r1, [fill_value];
  ld.param.u64 %rd2, [fill_count];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mov.u32 %r5, %nctaid.x;
  mul.wide.u32 %rd3, %r2, %r3;
  cvt.u64.u32 %rd4, %r4;
  add.u64 %rd3, %rd3, %rd4;
  mul.wide.u32 %rd5, %r5, %r3;
FILL_LOOP:
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra FILL_DONE;
  shl.b64 %rd6, %rd3, 2;
  add.u64 %rd7, %rd1, %rd6;
  st.global.u32 [%rd7], %r1;
  add.u64 %rd3, %rd3, %rd5;
  bra FILL_LOOP;
FILL_DONE:
  ret;
}

.visible .entry saxpy(.param .f32 saxpy_a, .param .u64 saxpy_x, .param .u64 saxpy_y, .param .u64 saxpy_n)
{
  .reg .pred %p<2>;
  .reg .f32 %f<5>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<11>;
  ld.param.f32 %f1, [saxpy_a];
  ld.param.u64 %rd1, [saxpy_x];
  ld.param.u64 %rd2, [saxpy_y];
  ld.param.u64 %rd3, [saxpy_n];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mov.u32 %r5, %nctaid.x;
  mul.wide.u32 %rd4, %r2, %r3;
  cvt.u64.u32 %rd5, %r4;
  add.u64 %rd4, %rd4, %rd5;
  mul.wide.u32 %rd6, %r5, %r3;
SAXPY_LOOP:
  setp.ge.u64 %p1, %rd4, %rd3;
  @%p1 bra SAXPY_DONE;
  shl.b64 %rd7, %rd4, 2;
  add.u64 %rd8, %rd1, %rd7;
  add.u64 %rd9, %rd2, %rd7;
  ld.global.f32 %f2, [%rd8];
  ld.global.f32 %f3, [%rd9];
  fma.rn.f32 %f4, %f1, %f2, %f3;
  st.global.f32 [%rd9], %f4;
  add.u64 %rd4, %rd4, %rd6;
  bra SAXPY_LOOP;
SAXPY_DONE:
  ret;
}

.visible .entry checksum(.param .u64 checksum_in, .param .u64 checksum_n, .param .u64 checksum_out)
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<13>;
  ld.param.u64 %rd1, [checksum_in];
  ld.param.u64 %rd2, [checksum_n];
  ld.param.u64 %rd3, [checksum_out];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd3, %rd3;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mov.u32 %r5, %nctaid.x;
  mul.wide.u32 %rd4, %r2, %r3;
  cvt.u64.u32 %rd5, %r4;
  add.u64 %rd4, %rd4, %rd5;
  mul.wide.u32 %rd6, %r5, %r3;
  mov.u64 %rd7, 0;
CHECKSUM_LOOP:
  setp.ge.u64 %p1, %rd4, %rd2;
  @%p1 bra CHECKSUM_DONE;
  shl.b64 %rd8, %rd4, 2;
  add.u64 %rd9, %rd1, %rd8;
  ld.global.u32 %rd10, [%rd9];
  add.u64 %rd7, %rd7, %rd10;
  add.u64 %rd4, %rd4, %rd6;
  bra CHECKSUM_LOOP;
CHECKSUM_DONE:
  red.global.add.u64 [%rd3], %rd7;
  ret;
}

.visible .entry fault()
{
  .reg .b64 %rd<2>;
  mov.u64 %rd1, 16;
  st.global.u32 [%rd1], 1;
  ret;
}
)";

std::string PtxWithGlobal(uint64_t bytes) {
  return fmt::format(R"(
.version 7.8
.target sm_80
.address_size 64
.visible .global .align 16 .b8 block[{}];
.visible .entry touch()
{{
  .reg .b64 %rd<2>;
  mov.u64 %rd1, block;
  st.global.u32 [%rd1], 1;
  ret;
}}
)",
                     bytes);
}

std::string PtxWithLocal(uint64_t bytes) {
  // It is written and read at addresses that are known only when it runs, so that
  // the array can neither become registers nor vanish.
  return fmt::format(R"(
.version 7.8
.target sm_80
.address_size 64
.visible .entry deep(.param .u64 deep_out)
{{
  .local .align 16 .b8 frame[{0}];
  .reg .b32 %r<4>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [deep_out];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %tid.x;
  rem.u32 %r2, %r1, {1};
  mul.wide.u32 %rd2, %r2, 4;
  mov.u64 %rd3, frame;
  add.u64 %rd4, %rd3, %rd2;
  st.local.u32 [%rd4], %r1;
  cvt.u32.u64 %r2, %rd1;
  rem.u32 %r2, %r2, {1};
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd4, %rd3, %rd2;
  ld.local.u32 %r3, [%rd4];
  st.global.u32 [%rd1], %r3;
  ret;
}}
)",
                     bytes, std::max<uint64_t>(1, std::min<uint64_t>(bytes / 4, 1u << 20)));
}

std::string PtxWithHeap() {
  return R"(
.version 7.8
.target sm_80
.address_size 64
.extern .func (.param .b64 result) malloc (.param .b64 size);
.visible .entry take(.param .u64 take_out)
{
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [take_out];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u64 %rd2, 1024;
  {
    .param .b64 size;
    .param .b64 result;
    st.param.b64 [size], %rd2;
    call.uni (result), malloc, (size);
    ld.param.b64 %rd3, [result];
  }
  st.global.u64 [%rd1], %rd3;
  ret;
}
)";
}

Result<Kernels> LoadKernels(const Driver& driver) {
  Kernels kernels;
  const std::string ptx(kKernelsPtx);
  if (const auto r = driver.ModuleLoadData(&kernels.module, ptx.c_str()); r != cuda::CUDA_SUCCESS) {
    return DriverError(driver, "cuModuleLoadData", r);
  }
  const std::pair<const char*, cuda::CUfunction*> functions[] = {{"spin", &kernels.spin},
                                                                 {"fill", &kernels.fill},
                                                                 {"saxpy", &kernels.saxpy},
                                                                 {"checksum", &kernels.checksum},
                                                                 {"fault", &kernels.fault}};
  for (const auto& [name, function] : functions) {
    if (const auto r = driver.ModuleGetFunction(function, kernels.module, name); r != cuda::CUDA_SUCCESS) {
      return DriverError(driver, "cuModuleGetFunction", r);
    }
  }
  return kernels;
}

namespace {

constexpr unsigned kBlocks = 264;
constexpr unsigned kThreads = 256;

Status Launch(const Driver& driver, cuda::CUfunction function, void** arguments) {
  auto r = driver.LaunchKernel(function, kBlocks, 1, 1, kThreads, 1, 1, 0, nullptr, arguments, nullptr);
  if (r != cuda::CUDA_SUCCESS) return DriverError(driver, "cuLaunchKernel", r);
  r = driver.CtxSynchronize();
  if (r != cuda::CUDA_SUCCESS) return DriverError(driver, "cuCtxSynchronize", r);
  return {};
}

Status VerifySaxpy(const Driver& driver, const Kernels& kernels, cuda::CUdeviceptr x, cuda::CUdeviceptr y,
                   size_t n) {
  std::vector<float> host_x(n), host_y(n);
  for (size_t i = 0; i < n; ++i) {
    host_x[i] = static_cast<float>(i % 1000);
    host_y[i] = static_cast<float>(i % 7);
  }
  auto r = driver.MemcpyHtoD(x, host_x.data(), n * sizeof(float));
  if (r == cuda::CUDA_SUCCESS) r = driver.MemcpyHtoD(y, host_y.data(), n * sizeof(float));
  if (r != cuda::CUDA_SUCCESS) return DriverError(driver, "cuMemcpyHtoD", r);
  float a = 3;
  uint64_t count = n;
  void* arguments[] = {&a, &x, &y, &count};
  if (const Status launched = Launch(driver, kernels.saxpy, arguments); !launched) return launched;
  std::vector<float> result(n);
  r = driver.MemcpyDtoH(result.data(), y, n * sizeof(float));
  if (r != cuda::CUDA_SUCCESS) return DriverError(driver, "cuMemcpyDtoH", r);
  for (size_t i = 0; i < n; ++i) {
    const float expected = a * host_x[i] + host_y[i];  // exact: small whole numbers
    if (result[i] != expected) {
      return Fail(Code::kInternal, fmt::format("saxpy: element {} is {}, not {}", i, result[i], expected));
    }
  }
  return {};
}

}  // namespace

Status Verify(const Driver& driver, const Kernels& kernels, cuda::CUdeviceptr ptr, uint64_t bytes) {
  uint32_t value = 0x9e3779b9;
  uint64_t count = bytes / 4;
  if (count == 0) return {};
  cuda::CUdeviceptr out = 0;
  if (const auto r = driver.MemAlloc(&out, sizeof(uint64_t)); r != cuda::CUDA_SUCCESS) {
    return DriverError(driver, "cuMemAlloc", r);
  }
  const auto run = [&]() -> Status {
    void* fill_arguments[] = {&ptr, &value, &count};
    if (const Status s = Launch(driver, kernels.fill, fill_arguments); !s) return s;
    uint64_t sum = 0;
    auto r = driver.MemcpyHtoD(out, &sum, sizeof sum);
    if (r != cuda::CUDA_SUCCESS) return DriverError(driver, "cuMemcpyHtoD", r);
    void* checksum_arguments[] = {&ptr, &count, &out};
    if (const Status s = Launch(driver, kernels.checksum, checksum_arguments); !s) return s;
    r = driver.MemcpyDtoH(&sum, out, sizeof sum);
    if (r != cuda::CUDA_SUCCESS) return DriverError(driver, "cuMemcpyDtoH", r);
    if (sum != value * count) {
      return Fail(Code::kInternal,
                  fmt::format("the checksum of {} words is {:#x}, not {:#x}", count, sum, value * count));
    }
    const size_t n = static_cast<size_t>(std::min<uint64_t>(count / 2, 4096));
    return n == 0 ? Status() : VerifySaxpy(driver, kernels, ptr, ptr + n * sizeof(float), n);
  };
  const Status status = run();
  driver.MemFree(out);
  return status;
}

}  // namespace gpumux::workload
