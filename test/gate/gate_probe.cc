// SPDX-License-Identifier: Apache-2.0
//
// gate_probe FILE ROLE [ARGUMENT]: a program of a tenant that is gated, or that closes
// the gates of others. FILE: state.h. It says that it is ready, and most roles begin
// when they are told to go.
//
//   works            kernels of 200 us, four under way, until it is told to stop
//   captures         captures graphs in one thread, so that no unsafe call may be made by any,
//                    while another launches kernels of ever other shapes, until it is told to stop
//   graphs           a graph of 40 kernels of 5 ms, each followed by a function on the host that checks what
//                    comes before it, again and again; told to change, it has another such function at its
//                    end
//   frees            eight such kernels, and frees memory, which waits for them
//   returns          eight such kernels, and returns from main; exits: calls exit()
//   forks            as works, in a child that has its own context
//   busy             kernels of 5 ms, two under way at any moment, until it is told to stop
//   polls            one kernel of 1 ms each 20 ms, and asks for its end again and again
//   never-waits      the same, and never asks nor waits
//   needs FILE       busy until the program of that FILE has done 30 kernels more
//   closes-files     closes every descriptor that is the guard's, then is busy
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "../softgpu/cuda_functions.h"
#include "state.h"

namespace gpumux::test {
namespace {

using namespace cuda;

ProgramState* state = nullptr;
CUcontext context = nullptr;

void Must(CUresult r, const char* what) {
  if (r == CUDA_SUCCESS) return;
  printf("%s: error %d\n", what, static_cast<int>(r));
  fflush(stdout);
  _exit(1);
}

void WaitForGo() {
  state->ready = kReady;
  while (state->command == 0) usleep(1000);
}

// So many kernels of `ns` under way at any moment, while `on`.
void KeepBusy(unsigned depth, uint64_t ns, const std::function<bool()>& on) {
  std::vector<CUevent> ended(depth);
  const auto launch = [&](CUevent event) {
    Must(Spin(ns), "launch");
    Must(CU(cuEventRecord, CUevent, CUstream)(event, nullptr), "record");
  };
  for (CUevent& event : ended) {
    Must(CU(cuEventCreate, CUevent*, unsigned)(&event, 0), "event");
    launch(event);
  }
  for (unsigned i = 0; on(); i = (i + 1) % depth) {
    Must(CU(cuEventSynchronize, CUevent)(ended[i]), "wait");
    ++state->done;
    launch(ended[i]);
  }
  Must(Synchronize(), "synchronise");
}

bool NotStopped() { return state->command != kStop; }

void Works() { KeepBusy(4, 200'000, NotStopped); }
void Busy() { KeepBusy(2, 5'000'000, NotStopped); }

void Queue() {
  for (int i = 0; i < 8; ++i) Must(Spin(200'000), "launch");
}

// Shapes that were not there before are measured: by events, which the program does not know of.
void LaunchShapes(const std::atomic<bool>& over) {
  const auto push = CU(cuCtxPushCurrent_v2, CUcontext);
  Must(push(context), "context of the thread");
  CUstream stream;
  Must(CU(cuStreamCreate, CUstream*, unsigned)(&stream, CU_STREAM_NON_BLOCKING), "stream");
  for (unsigned blocks = 1; !over; blocks = blocks % 200 + 1) {
    Must(Spin(20'000, stream, blocks), "launch beside a capture");
    usleep(200);
  }
}

void Captures() {
  Must(CU(cuCtxGetCurrent, CUcontext*)(&context), "context");
  std::atomic<bool> over = false;
  std::thread beside([&] { LaunchShapes(over); });
  CUstream stream;
  Must(CU(cuStreamCreate, CUstream*, unsigned)(&stream, CU_STREAM_NON_BLOCKING), "stream");
  while (NotStopped()) {
    Must(CU(cuStreamBeginCapture_v2, CUstream, CUstreamCaptureMode)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
         "begin");
    Must(Spin(1000, stream), "capture");
    usleep(2000);
    CUgraph graph = nullptr;
    Must(CU(cuStreamEndCapture, CUstream, CUgraph*)(stream, &graph), "end");
    Must(CU(cuGraphDestroy, CUgraph)(graph), "destroy");
    ++state->done;
  }
  over = true;
  beside.join();
}

// A graph: kernels one after another, each followed by a mark; of every fourth a second mark beside it.
class MarkedGraph {
 public:
  static constexpr int kSteps = 40;

  MarkedGraph() {
    Must(CU(cuStreamCreate, CUstream*, unsigned)(&stream_, CU_STREAM_NON_BLOCKING), "stream");
    Must(CU(cuStreamCreate, CUstream*, unsigned)(&beside_, CU_STREAM_NON_BLOCKING), "stream");
    Must(CU(cuEventCreate, CUevent*, unsigned)(&fork_, 0), "event");
    Must(CU(cuEventCreate, CUevent*, unsigned)(&join_, 0), "event");
    Must(CU(cuStreamBeginCapture_v2, CUstream, CUstreamCaptureMode)(stream_, CU_STREAM_CAPTURE_MODE_RELAXED),
         "begin");
    for (int i = 0; i < kSteps; ++i) Step(i);
    marks_[0].after = &marks_[kSteps - 1];
    Must(CU(cuStreamEndCapture, CUstream, CUgraph*)(stream_, &graph_), "end");
    Must(CU(cuGraphInstantiateWithFlags, CUgraphExec*, CUgraph, unsigned long long)(&exec_, graph_, 0),
         "instantiate");
  }

  // Once in each stream, without a wait between: the driver runs launches of one graph one after another.
  void Run() {
    const int launches = 2;
    CUstream streams[launches] = {stream_, beside_};
    for (Mark& mark : marks_) mark.seen = 0;
    for (CUstream stream : streams)
      Must(CU(cuGraphLaunch, CUgraphExec, CUstream)(exec_, stream), "launch of the graph");
    for (CUstream stream : streams) Must(CU(cuStreamSynchronize, CUstream)(stream), "wait");
    for (const Mark& mark : marks_)
      if (mark.seen != launches * mark.there) Fail("a mark was passed %d times", mark.seen);
  }

  // Its last mark is another one from now on.
  void Change() {
    size_t count = 0;
    Must(CU(cuGraphGetNodes, CUgraph, CUgraphNode*, size_t*)(graph_, nullptr, &count), "nodes");
    std::vector<CUgraphNode> nodes(count);
    Must(CU(cuGraphGetNodes, CUgraph, CUgraphNode*, size_t*)(graph_, nodes.data(), &count), "nodes");
    Mark& old = marks_[kSteps - 1];
    Mark& other = marks_.back();
    other = old;
    marks_[0].after = &other;
    old.there = false;
    const struct {
      void (*function)(void*);
      void* of;
    } params = {&Pass, &other};
    Must(
        CU(cuGraphExecHostNodeSetParams, CUgraphExec, CUgraphNode, const void*)(exec_, nodes.back(), &params),
        "change");
  }

  ~MarkedGraph() {
    Must(CU(cuGraphExecDestroy, CUgraphExec)(exec_), "destroy");
    Must(CU(cuGraphDestroy, CUgraph)(graph_), "destroy");
  }
  MarkedGraph(const MarkedGraph&) = delete;
  MarkedGraph& operator=(const MarkedGraph&) = delete;

 private:
  struct Mark {
    int seen = 0;
    bool there = true;
    const Mark* before = nullptr;  // of the same launch
    const Mark* after = nullptr;   // of the first one: the last one, of the launch before
    bool counts = true;
  };

  template <typename... A>
  static void Fail(const char* format, A... args) {
    printf(format, args...);
    fflush(stdout);
    _exit(1);
  }

  static void Pass(void* of) {
    auto* mark = static_cast<Mark*>(of);
    if (mark->before && mark->before->seen != mark->seen + 1)
      Fail("a mark before the one that it comes after");
    if (mark->after && mark->after->seen != mark->seen) Fail("two launches at once");
    ++mark->seen;
    if (mark->counts) ++state->done;
  }

  void PutMark(CUstream stream, Mark* mark, const Mark* before) {
    mark->before = before;
    Must(CU(cuLaunchHostFunc, CUstream, void (*)(void*), void*)(stream, &Pass, mark), "mark");
  }

  void Step(int i) {
    const Mark* before = i > 0 ? &marks_[i - 1] : nullptr;
    Must(Spin(5'000'000, stream_), "capture");
    const bool forks = i % 4 == 3 && i + 1 < kSteps;
    if (forks) {
      Must(CU(cuEventRecord, CUevent, CUstream)(fork_, stream_), "fork");
      Must(CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(beside_, fork_, 0), "fork");
      Mark* second = &marks_[kSteps + i / 4];
      second->counts = false;
      Must(Spin(1'000'000, beside_), "capture");
      PutMark(beside_, second, before);
      Must(CU(cuEventRecord, CUevent, CUstream)(join_, beside_), "join");
    }
    PutMark(stream_, &marks_[i], before);
    if (forks) Must(CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(stream_, join_, 0), "join");
  }

  CUstream stream_ = nullptr, beside_ = nullptr;
  CUevent fork_ = nullptr, join_ = nullptr;
  CUgraph graph_ = nullptr;
  CUgraphExec exec_ = nullptr;
  std::vector<Mark> marks_ = MakeMarks();
  static std::vector<Mark> MakeMarks() {
    std::vector<Mark> marks(kSteps + kSteps / 4);
    marks.back().there = false;
    return marks;
  }
};

void Graphs() {
  MarkedGraph graph;
  bool changed = false;
  while (NotStopped()) {
    if (state->command == kChange && !changed) {
      changed = true;
      graph.Change();
      graph.Run();
      state->ready = kDid;
    }
    graph.Run();
  }
}

int Frees() {
  CUdeviceptr memory;
  Must(Alloc(&memory, 1 << 20), "memory");
  WaitForGo();
  Queue();
  Must(Free(memory), "free");
  state->ready = kDid;
  while (NotStopped()) usleep(1000);
  return 0;
}

int Forks() {
  // Before there is a context: a child could not use that.
  const pid_t child = fork();
  if (child == 0) {
    Must(InitWithContext(), "context");
    WaitForGo();
    Works();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// One short kernel each 20 ms.
void NowAndThen(bool asks) {
  WaitForGo();
  while (NotStopped()) {
    Must(Spin(1'000'000), "launch");
    while (asks && CU(cuStreamQuery, CUstream)(nullptr) == CUDA_ERROR_NOT_READY) {
    }
    ++state->done;
    usleep(20'000);
  }
}

void Needs(const std::string& path) {
  const ProgramState* other = MapState(path);
  const uint64_t enough = other->done + 30;
  KeepBusy(2, 5'000'000, [&] { return other->done < enough; });
}

// Gates of others, and the own one, as they are mapped here.
size_t MappedGates() {
  size_t gates = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    gates += line.find("gpumux-gate") != std::string::npos;
  }
  return gates;
}

// Not the driver's. When it has got what it has asked for.
void CloseFilesOfGuard() {
  while (MappedGates() < 2) usleep(1000);
  for (int fd = 3; fd < 1024; ++fd) {
    char link[256] = "";
    if (readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), link, sizeof link - 1) < 0) continue;
    sockaddr_un peer{};
    socklen_t size = sizeof peer;
    const bool session = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
                         strstr(peer.sun_path, "session.sock") != nullptr;
    if (session || strstr(link, "gpumux-") != nullptr) close(fd);
  }
}

int Main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 3 || !(state = MapState(argv[1]))) return 2;
  const std::string role = argv[2];
  if (role == "forks") return Forks();
  // As the driver's own handler, which was there before the first context: it waits for what is queued.
  if (role == "returns" || role == "exits") atexit([] { Must(Synchronize(), "synchronise at the end"); });
  Must(InitWithContext(), "context");
  // How long a kernel takes is learnt from these.
  for (int i = 0; i < 4; ++i) Must(Spin(200'000), "launch");
  Must(Synchronize(), "synchronise");
  if (role == "frees") return Frees();
  if (role == "polls" || role == "never-waits") {
    NowAndThen(role == "polls");
    return 0;
  }
  if (role == "closes-files") CloseFilesOfGuard();
  WaitForGo();
  if (role == "works") Works();
  if (role == "captures") Captures();
  if (role == "graphs") Graphs();
  if (role == "busy" || role == "closes-files") Busy();
  if (role == "needs") Needs(argv[3]);
  if (role == "returns" || role == "exits") Queue();
  if (role == "exits") exit(0);
  return 0;
}

}  // namespace
}  // namespace gpumux::test

int main(int argc, char** argv) { return gpumux::test::Main(argc, argv); }
