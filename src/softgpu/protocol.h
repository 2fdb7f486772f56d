// SPDX-License-Identifier: Apache-2.0
//
// What the software GPU's libraries and its server say to each other, over a
// Unix socket of type SOCK_SEQPACKET (one message a packet) in the software
// GPU's directory. Libraries and server come from one build; kVersion guards
// against a server of another build that still runs.
//
// A process that uses CUDA opens a control connection (one request, one reply)
// and, with its first context, a work connection (kernels one way, completions
// the other, neither waits). NVML opens a control connection of its own, which
// holds nothing. Everything a process holds ends with its control connection or
// with the process, whichever comes first; of an MPS client, with the last copy
// of a descriptor that stands for /dev/nvidia* (server/mps.h).
#pragma once

#include <cstdint>

namespace gpumux::softgpu {

inline constexpr uint32_t kMagic = 0x47505553;
inline constexpr uint32_t kVersion = 6;
inline constexpr uint32_t kMaxGpus = 64;
// Requests name a compute instance as they name a GPU: by a number, from here on, that is never used
// again. Below: GPUs, by bus.
inline constexpr uint32_t kFirstPlace = 1 << 16;
inline constexpr char kSocketName[] = "gpu.sock";
inline constexpr char kStartLockName[] = "start.lock";
inline constexpr char kServerLockName[] = "server.lock";
inline constexpr char kServerProgram[] = "gpumux-softgpud";
// Where descriptors that stand for /dev/nvidia* seem to come from, under the
// directory: their links end in dev/nvidia0, dev/nvidiactl (and " (deleted)").
inline constexpr char kDeviceDirectory[] = "dev";

enum class Role : uint32_t {
  kNvml = 1,
  kCuda = 2,
  kWork = 3,
  kMpsServer = 4,  // a process that serves MPS clients; it has contexts
  kMpsWatch = 5,   // of an MPS server: hears MpsEvents
};

enum class Op : uint32_t {
  kHello = 1,
  kMemory,       // -> values: total, reserved (NVML), usable, used
  kUtilization,  // -> values: ppm of the last second with a kernel running, compute mode
  kProcesses,    // -> a ProcessList
  kAddContext,   // kCuda only from here on
  kRemoveContext,
  kTake,            // amount: bytes
  kGive,            // amount: bytes
  kTouchManaged,    // amount: bytes
  kFreeManaged,     // amount: bytes
  kLaunch,          // kWork: a Launch
  kDropStream,      // kWork: a Launch of which only gpu and stream count
  kCompletion,      // server -> kWork: a Completion
  kDescribe,        // any role: -> a Description
  kSetComputeMode,  // any role, of root: amount: NVML's number of the mode
  kFaults,          // any role, of a GPU -> values: how many kernels went wrong on it so far
  // Memory that several processes use (server/shares.h). Descriptors travel with
  // the message.
  kShare,       // amount: bytes that the client has taken; with its file -> value[0]: key
  kTakeShared,  // amount: bytes, key: of the client's own share
  kGiveShared,  // the same
  kUnshare,     // key: the client is done with a share of its own
  kExport,      // key -> a descriptor that stands for the share, and holds it while it is open
  kAttach,      // key -> values: key, bytes, GPU, creator; with the share's file
  kAttachFile,  // with such a descriptor -> as kAttach
  kDetach,      // key
  kOpenDevice,  // -> a descriptor that stands for /dev/nvidia<gpu>, of kMaxGpus for nvidiactl
  // MPS.
  kReserveManaged,  // amount: bytes, within the client's limit
  kReleaseManaged,  // the same
  kFault,           // kWork: a Launch of which only gpu counts: a kernel there went wrong
  kFailed,          // server -> kWork: a Completion: the process's contexts have failed with `kernel`
  kMpsReady,        // kMpsServer: accepts clients; amount: 1: of every user
  kMpsJoin,         // key: the MPS server; amount: 1: below normal priority
  kMpsPortion,      // before the first context there: gpu, key: SMs, amount: limit of memory or 0
  kMpsState,        // key: the MPS server -> values: MpsState, clients
  kMpsClients,      // key: the MPS server -> an MpsClientList
  kMpsTerminate,    // key: the MPS server, amount: pid of a client
  kMpsEvent,        // server -> kMpsWatch: an MpsEvent
  // MIG. All but kMigOpen of kNvml; where rights are wanted, with a descriptor of a capability file
  // (server_mig.cc). Answers kFailed have NVML's code.
  kMigState,           // -> a MigState
  kMigProfiles,        // -> a MigProfileList
  kMigRights,          // -> values: kMigMayConfigure | kMigMayLook
  kMigSetMode,         // amount: 0, 1 -> values: what became of it, as NVML's code
  kMigRoom,            // amount: profile -> values: how many more
  kMigCreate,          // amount: profile, key: start + 1, or 0: any -> values: its number
  kMigDestroy,         // key: number
  kMigComputeRoom,     // key: number of the GPU instance, amount: profile -> values: how many more
  kMigCreateCompute,   // the same, amount: profile | (start + 1) << 32 -> values: its place
  kMigDestroyCompute,  // key: place
  kMigReset,           // any role, of root or the server's user: the GPU; amount 1: the driver's unloading
  kMigOpen,            // kCuda, before its first context there: gpu: a place
};

enum class Answer : uint32_t {
  kOk = 0,
  kOutOfMemory = 1,
  kInvalid = 2,
  kRefused = 3,
  kBusy = 4,
  kFailed = 5,  // values[0]: the driver's code
};

struct Hello {
  Op op = Op::kHello;
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  Role role = Role::kNvml;
  uint64_t client = 0;  // kWork: the number that the control connection was given
};

struct HelloReply {
  Answer answer = Answer::kOk;
  uint32_t gpus = 0;
  uint64_t client = 0;
  uint64_t identity = 0;  // of the directory: what UUIDs are made of
};

struct Request {
  Op op = Op::kMemory;
  uint32_t gpu = 0;
  uint64_t amount = 0;
  uint64_t key = 0;
};

struct Reply {
  Answer answer = Answer::kOk;
  uint32_t pad = 0;
  uint64_t values[4] = {};
};

struct ProcessEntry {
  uint32_t pid = 0;       // in the server's pid namespace
  uint32_t busy_ppm = 0;  // of the last second
  uint64_t own_bytes = 0;
  uint32_t mps_client = 0;  // 1: it is one
  uint32_t gpu_instance = ~0U;
  uint32_t compute_instance = ~0U;
  uint32_t pad = 0;
};
inline constexpr uint32_t kMaxListed = 2048;
struct ProcessList {
  Answer answer = Answer::kOk;
  uint32_t count = 0;
  ProcessEntry entries[kMaxListed];
};

// What a GPU is: figures and names that do not change while the server runs.
struct Description {
  Answer answer = Answer::kOk;
  uint32_t pad = 0;
  char name[96] = {};           // with the mark of a simulation
  unsigned char uuid[16] = {};  // of a GPU, or of a MIG device
  char driver_version[24] = {};
  int32_t cuda_version = 0;
  uint32_t pci_device = 0;  // 16 bits; 0: none
  uint32_t pci_subsystem = 0;
  int32_t sms = 0;
  int32_t threads_per_sm = 0;
  int32_t blocks_per_sm = 0;
  int32_t major = 0;
  int32_t minor = 0;
  int32_t clock_mhz = 0;
  int32_t memory_clock_mhz = 0;
  int32_t bus_bits = 0;
  uint32_t l2_kib = 0;
  uint32_t shared_kib_per_sm = 0;
  uint32_t flags = 0;
  uint64_t total = 0;   // NVML's
  uint64_t usable = 0;  // what a program can use
  // Of a compute instance.
  uint32_t parent = 0;  // the GPU; of a GPU itself
  uint32_t gpu_instance = ~0U;
  uint32_t compute_instance = ~0U;
  uint32_t pad2 = 0;
};
inline constexpr uint32_t kFlagMig = 1;  // can be partitioned
inline constexpr uint32_t kFlagEcc = 2;
inline constexpr uint32_t kFlagUnified = 4;  // no memory of its own

// What GPU instances there can be.
inline constexpr uint32_t kMaxMigProfiles = 24;
inline constexpr uint32_t kMigComputeProfiles = 5;
struct MigComputeEntry {
  uint32_t slices = 0;  // 0: there is none
  uint32_t sms = 0;
  uint32_t count = 0;  // at most
};
struct MigProfileEntry {
  char name[32] = {};  // "3g.71gb"
  uint32_t id = 0;
  uint32_t nvml_profile = 0;
  uint32_t compute_slices = 0;
  uint32_t memory_slices = 0;
  uint32_t max_instances = 0;
  uint32_t attribute = 0;  // gpu::MigAttribute
  uint32_t sms = 0;
  uint32_t memory_mib = 0;
  uint32_t copy = 0, nvdec = 0, nvenc = 0, jpeg = 0, ofa = 0;
  uint32_t start_count = 0;
  uint8_t starts[16] = {};                            // memory slices
  MigComputeEntry compute[kMigComputeProfiles] = {};  // by the id of the profile
};
struct MigProfileList {
  Answer answer = Answer::kOk;
  uint32_t count = 0;
  MigProfileEntry entries[kMaxMigProfiles];
};

struct MigInstanceEntry {
  uint32_t number = 0;
  uint32_t id = 0;
  uint32_t profile = 0;
  uint32_t start = 0;
};
struct MigComputeInstanceEntry {
  uint32_t place = 0;
  uint32_t id = 0;
  uint32_t instance = 0;  // number of its GPU instance
  uint32_t profile = 0;
  uint32_t start = 0;
  uint32_t index = 0;  // among the GPU's MIG devices
};
inline constexpr uint32_t kMaxMigInstances = 16;
struct MigState {
  Answer answer = Answer::kOk;
  uint32_t capable = 0;
  uint32_t enabled = 0;
  uint32_t pending = 0;
  uint32_t max_devices = 0;
  uint32_t instance_count = 0;
  uint32_t compute_count = 0;
  MigInstanceEntry instances[kMaxMigInstances];
  MigComputeInstanceEntry computes[kMaxMigInstances];
};
inline constexpr uint64_t kMigMayConfigure = 1;
inline constexpr uint64_t kMigMayLook = 2;
// Whoever can read such a file under the directory may do what root may.
inline constexpr char kMigConfigFile[] = "dev/nvidia-caps/nvidia-cap1";
inline constexpr char kMigMonitorFile[] = "dev/nvidia-caps/nvidia-cap2";

struct Launch {
  Op op = Op::kLaunch;
  uint32_t gpu = 0;
  uint64_t stream = 0;       // any number; kernels of one stream run in order
  uint64_t kernel = 0;       // comes back in the Completion
  uint64_t duration_ns = 0;  // of one block
  uint64_t blocks = 0;
  uint32_t threads_per_block = 0;
  uint32_t pad = 0;
};
// What a client may have in flight before the server drops it as broken.
inline constexpr uint64_t kMaxInFlight = 1 << 16;
inline constexpr uint64_t kMaxKernelNs = 3'600'000'000'000;

enum class MpsState : uint64_t { kInitializing = 0, kActive = 1, kFault = 2 };

struct MpsClientEntry {
  uint32_t pid = 0;
  uint32_t pad = 0;
  uint64_t number = 0;  // of the client; rises
  uint64_t gpus = 0;    // a bit each on which it has a context
};
struct MpsClientList {
  Answer answer = Answer::kOk;
  uint32_t count = 0;
  MpsClientEntry entries[kMaxListed];
};

struct MpsEvent {
  enum class Kind : uint32_t {
    kJoined = 1,
    kLeft = 2,
    kTerminated = 3,
    kFault = 4,
    kFailed = 5,
    kRecovered = 6
  };
  Op op = Op::kMpsEvent;
  Kind kind = Kind::kJoined;
  uint32_t pid = 0;  // kFault: whose; kFailed: a client that it takes along
  uint32_t gpu = 0;
};

struct Completion {
  Op op = Op::kCompletion;
  uint32_t pad = 0;
  uint64_t kernel = 0;
  int64_t start_ns = 0;  // CLOCK_MONOTONIC
  int64_t end_ns = 0;
};

static_assert(sizeof(Hello) == 24 && sizeof(HelloReply) == 24);
static_assert(sizeof(Request) == 24 && sizeof(Reply) == 40);
static_assert(sizeof(Description) == 232 && sizeof(ProcessEntry) == 32);
static_assert(sizeof(Launch) == 48 && sizeof(Completion) == 32 && sizeof(MpsEvent) == 16);

}  // namespace gpumux::softgpu
