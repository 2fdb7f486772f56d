// SPDX-License-Identifier: Apache-2.0
//
// A C++ program whose CUDA runtime is linked statically, under a promise: what it
// is told, and what every way to memory of the runtime answers beyond it.
//   nvcc -O2 -cudart static -o static_runtime static_runtime.cu
//   gpumux run --mem 8GiB -- ./static_runtime
// One line a way: the runtime's error for a small piece, for one beyond the promise,
// and by how much free memory differs from the start when both are given back.
#include <cuda_runtime.h>

#include <cstdio>
#include <functional>

namespace {

constexpr size_t kSmall = 64u << 20, kOver = 9ull << 30;

size_t Free() {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  return free;
}

void Way(const char* name, const std::function<cudaError_t(size_t, void**)>& take,
         const std::function<cudaError_t(void*)>& give) {
  const size_t before = Free();
  void* p = nullptr;
  const cudaError_t small = take(kSmall, &p);
  const long long charged = static_cast<long long>(before) - static_cast<long long>(Free());
  if (small == cudaSuccess) give(p);
  void* q = nullptr;
  const cudaError_t over = take(kOver, &q);
  if (over == cudaSuccess) give(q);
  cudaGetLastError();
  cudaDeviceSynchronize();
  std::printf("%-28s small %d charged %lld over %d left %lld\n", name, small, charged, over,
              static_cast<long long>(before) - static_cast<long long>(Free()));
}

// Needs 128 KiB of local memory a thread: 33 GiB on an H200.
__global__ void Large(int* out, int at) {
  volatile int buffer[32768];
  for (int i = 0; i < 32768; ++i) buffer[i] = i + at;
  out[threadIdx.x] = buffer[at];
}
__global__ void Add(int* out) { out[threadIdx.x] += 1; }

}  // namespace

int main() {
  size_t free = 0, total = 0;
  cudaError_t r = cudaMemGetInfo(&free, &total);
  cudaDeviceProp prop;
  cudaGetDeviceProperties(&prop, 0);
  std::printf("told %d free %zu total %zu properties %zu\n", r, free, total, prop.totalGlobalMem);
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  int* out = nullptr;
  cudaMalloc(&out, 4096);
  cudaMemset(out, 0, 4096);
  Add<<<1, 32, 0, stream>>>(out);
  cudaStreamSynchronize(stream);

  Way("cudaMalloc", [](size_t n, void** p) { return cudaMalloc(p, n); }, [](void* p) { return cudaFree(p); });
  Way("cudaMallocPitch",
      [](size_t n, void** p) {
        size_t pitch;
        return cudaMallocPitch(p, &pitch, 1 << 20, n >> 20);
      },
      [](void* p) { return cudaFree(p); });
  Way("cudaMallocManaged", [](size_t n, void** p) { return cudaMallocManaged(p, n); }, [](void* p) { return cudaFree(p); });
  Way("cudaMallocAsync",
      [&](size_t n, void** p) { return cudaMallocAsync(p, n, stream); },
      [&](void* p) {
        cudaFreeAsync(p, stream);
        return cudaStreamSynchronize(stream);
      });
  Way("cudaMallocArray",
      [](size_t n, void** p) {
        const cudaChannelFormatDesc f = cudaCreateChannelDesc<float4>();
        return cudaMallocArray(reinterpret_cast<cudaArray_t*>(p), &f, 32768, n / 32768 / 16);
      },
      [](void* p) { return cudaFreeArray(static_cast<cudaArray_t>(p)); });
  Way("cudaMalloc3D",
      [](size_t n, void** p) {
        cudaPitchedPtr q;
        const cudaError_t e = cudaMalloc3D(&q, make_cudaExtent(1 << 16, 1 << 10, n >> 26));
        *p = q.ptr;
        return e;
      },
      [](void* p) { return cudaFree(p); });

  const size_t before = Free();
  Large<<<1, 32, 0, stream>>>(out, 5);
  const cudaError_t launched = cudaGetLastError();
  std::printf("kernel with 128 KiB local    %d left %lld\n", launched,
              static_cast<long long>(before) - static_cast<long long>(Free()));
  Add<<<1, 32, 0, stream>>>(out);
  r = cudaStreamSynchronize(stream);
  int value = 0;
  cudaMemcpy(&value, out, sizeof(value), cudaMemcpyDeviceToHost);
  std::printf("works on: %d, value %d\n", r, value);
  return 0;
}
