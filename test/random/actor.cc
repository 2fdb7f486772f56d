// SPDX-License-Identifier: Apache-2.0
//
// A process of a random program: does with the driver what it is told, one
// packet a step, and answers with the driver's code. It knows nothing of
// promises. `actor watch` reads NVML instead, for figures that no guard has
// touched.
#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/nvml/nvml.h"

using namespace gpumux::cuda;
namespace nv = gpumux::nvml;

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPage = 2 * kMiB;
constexpr size_t kMarkBytes = 4096;

struct IpcHandle {
  char bytes[64];
};

// CALL(cuInit, unsigned)(0): looked up anew each time, as any program may.
void* Symbol(const char* name) {
  static void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  return handle ? dlsym(handle, name) : nullptr;
}
#define CALL(name, ...) (reinterpret_cast<CUresult (*)(__VA_ARGS__)>(Symbol(#name)))

struct Object {
  std::string family;
  CUcontext context = nullptr;
  CUdeviceptr ptr = 0;  // of memory that can be filled and read; else 0
  uint64_t bytes = 0;
  unsigned long long handle = 0;  // VMM handle, array, module, context, executable graph
  CUgraph graph = nullptr;
  bool mapped = false, released = false;
};

CUdevice g_device = 0;
CUcontext g_primary = nullptr;
CUmemoryPool g_pool = nullptr;
std::map<int, Object> g_objects;
std::vector<CUdeviceptr> g_freed;
int g_socket = -1;

void Send(const std::string& text) { (void)!send(g_socket, text.data(), text.size(), MSG_NOSIGNAL); }

void Connect(const char* role) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const char* path = getenv("RANDOM_PROGRAM_SOCKET");
  if (!path || strlen(path) >= sizeof address.sun_path) _exit(90);
  strcpy(address.sun_path, path);
  g_socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connect(g_socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) _exit(91);
  Send("hello " + std::to_string(getpid()) + " " + role);
}

unsigned char MarkOf(int id) { return static_cast<unsigned char>(1 + id % 251); }

CUresult Fill(int id, const Object& o) {
  if (!o.ptr) return CUDA_SUCCESS;
  const size_t bytes = o.bytes < kMarkBytes ? o.bytes : kMarkBytes;
  return CALL(cuMemsetD8_v2, CUdeviceptr, unsigned char, size_t)(o.ptr, MarkOf(id), bytes);
}

// CUDA_ERROR_ILLEGAL_ADDRESS stands for a wrong value.
CUresult Read(int id, CUdeviceptr ptr, uint64_t bytes) {
  std::vector<unsigned char> back(bytes < kMarkBytes ? bytes : kMarkBytes);
  if (CUresult r = CALL(cuMemcpyDtoH_v2, void*, CUdeviceptr, size_t)(back.data(), ptr, back.size())) return r;
  for (unsigned char b : back) {
    if (b != MarkOf(id)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return CUDA_SUCCESS;
}

CUresult Init() {
  if (CUresult r = CALL(cuInit, unsigned)(0)) return r;
  if (CUresult r = CALL(cuDeviceGet, CUdevice*, int)(&g_device, 0)) return r;
  if (CUresult r = CALL(cuDevicePrimaryCtxRetain, CUcontext*, CUdevice)(&g_primary, g_device)) return r;
  return CALL(cuCtxSetCurrent, CUcontext)(g_primary);
}

CUmemLocation OnDevice() { return {CU_MEM_LOCATION_TYPE_DEVICE, g_device}; }

CUresult AllocatePool(Object* o) {
  if (!g_pool) {
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = OnDevice();
    if (CUresult r = CALL(cuMemPoolCreate, CUmemoryPool*, const CUmemPoolProps*)(&g_pool, &props)) return r;
  }
  return CALL(cuMemAllocFromPoolAsync, CUdeviceptr*, size_t, CUmemoryPool, CUstream)(&o->ptr, o->bytes,
                                                                                     g_pool, nullptr);
}

CUresult AllocatePhysical(Object* o) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = OnDevice();
  o->bytes = (o->bytes + kPage - 1) / kPage * kPage;
  return CALL(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
              unsigned long long)(&o->handle, o->bytes, &prop, 0);
}

CUresult AllocateArray(Object* o) {
  constexpr int kFloat = 0x20;
  CUDA_ARRAY_DESCRIPTOR d = {10, 10, kFloat, 1};
  if (o->bytes > kMiB) d = {16384, (o->bytes + 262143) / 262144, kFloat, 4};
  CUarray array = nullptr;
  const CUresult r = CALL(cuArrayCreate_v2, CUarray*, const CUDA_ARRAY_DESCRIPTOR*)(&array, &d);
  o->handle = reinterpret_cast<uint64_t>(array);
  return r;
}

CUresult LoadModule(Object* o) {
  const std::string text =
      ".version 7.8\n.target sm_80\n.address_size 64\n.visible .global .align 16 .b8 big[" +
      std::to_string(o->bytes) + "];\n.visible .entry k() { ret; }\n";
  CUmodule module = nullptr;
  const CUresult r = CALL(cuModuleLoadData, CUmodule*, const void*)(&module, text.c_str());
  o->handle = reinterpret_cast<uint64_t>(module);
  return r;
}

void EndGraph(Object& o) {
  if (o.handle) CALL(cuGraphExecDestroy, CUgraphExec)(reinterpret_cast<CUgraphExec>(o.handle));
  if (o.graph) CALL(cuGraphDestroy, CUgraph)(o.graph);
  CALL(cuDeviceGraphMemTrim, CUdevice)(g_device);
}

CUresult RunGraph(Object* o) {
  CUDA_MEM_ALLOC_NODE_PARAMS node = {};
  node.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  node.poolProps.location = OnDevice();
  node.bytesize = o->bytes;
  CUgraphNode made = nullptr;
  CUgraphExec exec = nullptr;
  CUresult r = CALL(cuGraphCreate, CUgraph*, unsigned)(&o->graph, 0);
  if (!r) {
    r = CALL(cuGraphAddMemAllocNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
             CUDA_MEM_ALLOC_NODE_PARAMS*)(&made, o->graph, nullptr, 0, &node);
  }
  if (!r)
    r = CALL(cuGraphInstantiateWithFlags, CUgraphExec*, CUgraph, unsigned long long)(&exec, o->graph, 0);
  o->handle = reinterpret_cast<uint64_t>(exec);
  if (!r) r = CALL(cuGraphLaunch, CUgraphExec, CUstream)(exec, nullptr);
  if (!r) r = CALL(cuStreamSynchronize, CUstream)(nullptr);
  if (r) {
    EndGraph(*o);
    return r;
  }
  o->ptr = node.dptr;
  return r;
}

CUresult CreateContext(Object* o) {
  CUcontext context = nullptr;
  const CUresult r = CALL(cuCtxCreate_v2, CUcontext*, unsigned, CUdevice)(&context, 0, g_device);
  o->handle = reinterpret_cast<uint64_t>(context);
  return r;
}

CUresult Allocate(Object* o) {
  size_t pitch = 0;
  const std::string& f = o->family;
  if (f == "plain") return CALL(cuMemAlloc_v2, CUdeviceptr*, size_t)(&o->ptr, o->bytes);
  if (f == "pitch") {
    constexpr size_t kWidth = 100'000;
    return CALL(cuMemAllocPitch_v2, CUdeviceptr*, size_t*, size_t, size_t, unsigned)(
        &o->ptr, &pitch, kWidth, o->bytes / kWidth + 1, 16);
  }
  if (f == "managed") {
    const CUresult r =
        CALL(cuMemAllocManaged, CUdeviceptr*, size_t, unsigned)(&o->handle, o->bytes, CU_MEM_ATTACH_GLOBAL);
    return r;  // not touched: it would move onto the device
  }
  if (f == "async") return CALL(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream)(&o->ptr, o->bytes, nullptr);
  if (f == "pool") return AllocatePool(o);
  if (f == "vmm") return AllocatePhysical(o);
  if (f == "array") return AllocateArray(o);
  if (f == "module") return LoadModule(o);
  if (f == "graph") return RunGraph(o);
  if (f == "context") return CreateContext(o);
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult Unmap(Object& o) {
  if (CUresult r = CALL(cuMemUnmap, CUdeviceptr, size_t)(o.ptr, o.bytes)) return r;
  o.mapped = false;
  const CUdeviceptr at = o.ptr;
  o.ptr = 0;
  return CALL(cuMemAddressFree, CUdeviceptr, size_t)(at, o.bytes);
}

CUresult Release(Object& o) {
  const CUresult r = CALL(cuMemRelease, CUmemGenericAllocationHandle)(o.handle);
  if (!r) o.released = true;
  return r;
}

CUresult Free(Object& o) {
  const std::string& f = o.family;
  if (f == "plain" || f == "pitch") return CALL(cuMemFree_v2, CUdeviceptr)(o.ptr);
  if (f == "managed") return CALL(cuMemFree_v2, CUdeviceptr)(o.handle);
  if (f == "import") return CALL(cuIpcCloseMemHandle, CUdeviceptr)(o.ptr);
  if (f == "array") return CALL(cuArrayDestroy, CUarray)(reinterpret_cast<CUarray>(o.handle));
  if (f == "module") return CALL(cuModuleUnload, CUmodule)(reinterpret_cast<CUmodule>(o.handle));
  if (f == "context") return CALL(cuCtxDestroy_v2, CUcontext)(reinterpret_cast<CUcontext>(o.handle));
  if (f == "vmm") {
    if (o.mapped) {
      if (CUresult r = Unmap(o)) return r;
    }
    return o.released ? CUDA_SUCCESS : Release(o);
  }
  CUresult r = CALL(cuMemFreeAsync, CUdeviceptr, CUstream)(o.ptr, nullptr);
  if (!r) r = CALL(cuStreamSynchronize, CUstream)(nullptr);
  if (f == "graph" && !r) EndGraph(o);
  return r;
}

CUresult DoAllocate(int id, const std::string& family, uint64_t bytes, int context_id) {
  Object o;
  o.family = family;
  o.bytes = bytes;
  o.context = context_id ? reinterpret_cast<CUcontext>(g_objects[context_id].handle) : g_primary;
  CALL(cuCtxSetCurrent, CUcontext)(o.context);
  CUresult r = Allocate(&o);
  if (!r) r = Fill(id, o);
  CALL(cuCtxSetCurrent, CUcontext)(g_primary);
  if (!r) g_objects[id] = o;
  return r;
}

CUresult DoFree(int id) {
  Object& o = g_objects[id];
  CALL(cuCtxSetCurrent, CUcontext)(o.context);
  CUresult r = CUDA_SUCCESS;
  if (o.ptr && o.family != "import") r = Read(id, o.ptr, o.bytes);
  if (!r) r = Free(o);
  CALL(cuCtxSetCurrent, CUcontext)(g_primary);
  if (r) return r;
  if (o.ptr && o.family == "plain") g_freed.push_back(o.ptr);
  const auto context = reinterpret_cast<CUcontext>(o.handle);
  const bool was_context = o.family == "context";
  g_objects.erase(id);
  if (was_context) std::erase_if(g_objects, [&](const auto& each) { return each.second.context == context; });
  return r;
}

CUresult Map(int id) {
  Object& o = g_objects[id];
  CUdeviceptr at = 0;
  if (CUresult r = CALL(cuMemAddressReserve, CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long)(
          &at, o.bytes, 0, 0, 0)) {
    return r;
  }
  if (CUresult r = CALL(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                        unsigned long long)(at, o.bytes, 0, o.handle, 0)) {
    return r;
  }
  const CUmemAccessDesc access = {OnDevice(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (CUresult r =
          CALL(cuMemSetAccess, CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)(at, o.bytes, &access, 1))
    return r;
  o.ptr = at;
  o.mapped = true;
  return Fill(id, o);
}

bool IsLive(CUdeviceptr ptr) {
  for (const auto& [id, o] : g_objects) {
    const CUdeviceptr at = o.ptr ? o.ptr : o.handle;
    if (ptr >= at && ptr < at + o.bytes) return true;
  }
  return false;
}

// Frees what is not there to be freed: the driver refuses each.
CUresult FreeWrongly(int way, uint64_t foreign) {
  CUdeviceptr ptr = 0x1234;
  if (way == 0 && !g_freed.empty()) ptr = g_freed.back();
  if (way == 1 && foreign) ptr = foreign;
  if (IsLive(ptr)) ptr = 0x1234;  // its address has a new owner meanwhile
  switch (way) {
    case 2:
      return CALL(cuMemRelease, CUmemGenericAllocationHandle)(ptr);
    case 3:
      return CALL(cuMemFreeAsync, CUdeviceptr, CUstream)(ptr, nullptr);
    case 4:
      return CALL(cuMemUnmap, CUdeviceptr, size_t)(kPage * 77, kPage);
    case 5:
      for (const auto& [id, o] : g_objects) {
        if (o.family == "plain" && o.bytes > 1024) ptr = o.ptr + 512;
      }
      break;
    default:
      break;
  }
  return CALL(cuMemFree_v2, CUdeviceptr)(ptr);
}

std::string Export(int id) {
  IpcHandle handle = {};
  const CUresult r = CALL(cuIpcGetMemHandle, IpcHandle*, CUdeviceptr)(&handle, g_objects[id].ptr);
  std::string text = std::to_string(r) + " ";
  char hex[3];
  for (const char c : handle.bytes) {
    snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(c));
    text += hex;
  }
  return text;
}

CUresult Import(int id, const std::string& hex, int original_id, uint64_t bytes) {
  IpcHandle handle = {};
  for (size_t i = 0; i < sizeof handle.bytes && 2 * i + 1 < hex.size(); i++)
    handle.bytes[i] = static_cast<char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  Object o;
  o.family = "import";
  o.context = g_primary;
  o.bytes = bytes;
  if (CUresult r = CALL(cuIpcOpenMemHandle_v2, CUdeviceptr*, IpcHandle, unsigned)(&o.ptr, handle, 1))
    return r;
  if (CUresult r = Read(original_id, o.ptr, bytes)) return r;
  g_objects[id] = o;
  return CUDA_SUCCESS;
}

CUresult ResetPrimary() {
  if (g_pool) CALL(cuMemPoolDestroy, CUmemoryPool)(g_pool);
  g_pool = nullptr;
  if (CUresult r = CALL(cuDevicePrimaryCtxReset_v2, CUdevice)(g_device)) return r;
  g_objects.clear();
  if (CUresult r = CALL(cuDevicePrimaryCtxRetain, CUcontext*, CUdevice)(&g_primary, g_device)) return r;
  return CALL(cuCtxSetCurrent, CUcontext)(g_primary);
}

std::string Told() {
  size_t free = 0, total = 0;
  const CUresult r = CALL(cuMemGetInfo_v2, size_t*, size_t*)(&free, &total);
  return std::to_string(r) + " " + std::to_string(free) + " " + std::to_string(total);
}

// Takes and gives back stream-ordered memory again and again.
CUresult Churn(int rounds) {
  for (int i = 0; i < rounds; i++) {
    CUdeviceptr ptr = 0;
    const size_t bytes = 1 + static_cast<size_t>(i) * 7919 % (8 * kMiB);
    if (CUresult r = CALL(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream)(&ptr, bytes, nullptr)) return r;
    if (CUresult r = CALL(cuMemFreeAsync, CUdeviceptr, CUstream)(ptr, nullptr)) return r;
    if (i % 100 != 99) continue;
    if (CUresult r = CALL(cuStreamSynchronize, CUstream)(nullptr)) return r;
  }
  return CALL(cuStreamSynchronize, CUstream)(nullptr);
}

// What frameworks ask before they use a device; 0 and whether that made a context.
std::string Probe() {
  unsigned flags = 0;
  int active = -1, count = 0;
  CUcontext current = nullptr;
  CALL(cuInit, unsigned)(0);
  CALL(cuDeviceGetCount, int*)(&count);
  CALL(cuDeviceGet, CUdevice*, int)(&g_device, 0);
  size_t total = 0;
  CALL(cuDeviceTotalMem_v2, size_t*, CUdevice)(&total, g_device);
  CALL(cuCtxGetCurrent, CUcontext*)(&current);
  CALL(cuDevicePrimaryCtxGetState, CUdevice, unsigned*, int*)(g_device, &flags, &active);
  return "0 " + std::to_string(active) + " " + std::to_string(current != nullptr);
}

// Code and value of every device attribute.
std::string Attributes() {
  constexpr int kLast = 150;
  CALL(cuInit, unsigned)(0);
  std::string text;
  for (int i = 1; i <= kLast; i++) {
    int value = 0;
    const CUresult r = CALL(cuDeviceGetAttribute, int*, CUdevice_attribute, CUdevice)(
        &value, static_cast<CUdevice_attribute>(i), 0);
    text += std::to_string(r) + ":" + std::to_string(value) + " ";
  }
  return text;
}

void Fork() {
  const pid_t pid = fork();
  if (pid != 0) return Send("0 " + std::to_string(pid));
  close(g_socket);
  g_objects.clear();
  g_freed.clear();
  g_pool = nullptr;
  Connect("actor");
}

void Die(const std::string& how) {
  if (how == "exit") exit(0);
  if (how == "_exit") _exit(0);
  if (how == "abort") abort();
  kill(getpid(), SIGKILL);
}

void Execute(const std::string& line) {
  std::istringstream in(line);
  std::string op, word;
  int id = 0, other = 0;
  uint64_t bytes = 0, value = 0;
  in >> op;
  auto answer = [](CUresult r) { Send(std::to_string(r)); };
  if (op == "init") return answer(Init());
  if (op == "alloc") {
    in >> id >> word >> bytes >> other;
    return answer(DoAllocate(id, word, bytes, other));
  }
  if (op == "free" && in >> id) return answer(DoFree(id));
  if (op == "map" && in >> id) return answer(Map(id));
  if (op == "unmap" && in >> id) return answer(Unmap(g_objects[id]));
  if (op == "release" && in >> id) return answer(Release(g_objects[id]));
  if (op == "wrong" && in >> id >> value) return answer(FreeWrongly(id, value));
  if (op == "export" && in >> id) return Send(Export(id));
  if (op == "import" && in >> id >> word >> other >> bytes) return answer(Import(id, word, other, bytes));
  if (op == "limit" && in >> other >> value)
    return answer(CALL(cuCtxSetLimit, CUlimit, size_t)(static_cast<CUlimit>(other), value));
  if (op == "reset") return answer(ResetPrimary());
  if (op == "told") return Send(Told());
  if (op == "address" && in >> id) return Send("0 " + std::to_string(g_objects[id].ptr));
  if (op == "churn" && in >> id) return answer(Churn(id));
  if (op == "probe") return Send(Probe());
  if (op == "attributes") return Send(Attributes());
  if (op == "fork") return Fork();
  if (op == "exec") {
    execl("/proc/self/exe", "actor", nullptr);
    _exit(92);
  }
  if (op == "die" && in >> word) return Die(word);
  Send("801 " + line);
}

// Each process that NVML lists on the first GPU, as "pid:bytes".
std::string Listed() {
  static void* lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  static nv::nvmlDevice_t device = [] {
    nv::nvmlDevice_t d = nullptr;
    reinterpret_cast<int (*)()>(dlsym(lib, "nvmlInit_v2"))();
    reinterpret_cast<int (*)(unsigned, nv::nvmlDevice_t*)>(dlsym(lib, "nvmlDeviceGetHandleByIndex_v2"))(0,
                                                                                                        &d);
    return d;
  }();
  static nv::nvmlProcessInfo_v2_t list[4096];
  unsigned count = 4096;
  auto* processes = reinterpret_cast<int (*)(nv::nvmlDevice_t, unsigned*, nv::nvmlProcessInfo_v2_t*)>(
      dlsym(lib, "nvmlDeviceGetComputeRunningProcesses_v3"));
  if (processes(device, &count, list) != 0) return "error";
  std::string text = "list";
  for (unsigned i = 0; i < count; i++)
    text += " " + std::to_string(list[i].pid) + ":" + std::to_string(list[i].usedGpuMemory);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const bool watch = argc > 1 && strcmp(argv[1], "watch") == 0;
  signal(SIGCHLD, SIG_IGN);  // children are reaped by nobody here
  Connect(watch ? "watch" : "actor");
  char buffer[4096];
  for (;;) {
    const ssize_t n = recv(g_socket, buffer, sizeof buffer, 0);
    if (n <= 0) return 0;  // the test is over
    const std::string line(buffer, static_cast<size_t>(n));
    if (watch) {
      Send(Listed());
    } else {
      Execute(line);
    }
  }
}
