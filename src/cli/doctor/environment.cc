// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/environment.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/process.h"
#include "cli/api_client.h"
#include "cli/endpoints.h"
#include "gpumux/abi/session.h"
#include "ipc/seqpacket.h"

namespace gpumux::cli::doctor {
namespace {

namespace fs = std::filesystem;

// A healthy daemon answers within milliseconds; one that asks a sick GPU may take seconds.
constexpr auto kPatience = std::chrono::seconds(5);

std::map<std::string, std::string> Variables() {
  std::map<std::string, std::string> out;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      out.emplace(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
  }
  return out;
}

std::string UserOf(uid_t uid) {
  const passwd* entry = ::getpwuid(uid);
  return entry ? entry->pw_name : std::to_string(uid);
}

std::vector<gid_t> Groups() {
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, ::getgroups(0, nullptr))));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<size_t>(std::max(0, count)));
  groups.push_back(::getegid());
  return groups;
}

GpuView LookAtGpus() {
  GpuView view;
  view.source = gpu::FindGpuSource();
  if (!view.source) {
    view.error = view.source.error();
    return view;
  }
  auto nvml = gpu::Nvml::Open(*view.source);
  if (nvml) {
    view.nvml = std::move(*nvml);
  } else {
    view.error = nvml.error();
  }
  return view;
}

// Loads the library and asks for nothing but its version: no context, no GPU.
Result<CudaView> LookAtCuda(const GpuView& gpus) {
  if (!gpus.source) return tl::unexpected(gpus.source.error());
  const std::string name = gpus.simulated() ? gpus.source->libraries_dir + "/libcuda.so.1" : "libcuda.so.1";
  void* library = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) {
    const char* why = ::dlerror();
    return Fail(Code::kUnavailable, why ? why : "cannot load " + name);
  }
  CudaView view;
  Dl_info info{};
  void* function = ::dlsym(library, "cuDriverGetVersion");
  if (function && ::dladdr(function, &info) != 0 && info.dli_fname) {
    std::error_code error;
    view.file = fs::canonical(info.dli_fname, error).string();
    if (error) view.file = info.dli_fname;
  }
  int version = 0;
  if (function && reinterpret_cast<int (*)(int*)>(function)(&version) == 0) view.cuda_version = version;
  ::dlclose(library);
  return view;
}

std::vector<RuntimePaths> Places(const Environment& environment, bool simulated) {
  if (!environment.runtime_dir) return {};
  return PlacesOfDaemons(environment.Variable(GPUMUX_ENV_SESSION).value_or(""),
                         environment.Variable("GPUMUX_SYSTEM_DIR").value_or(""),
                         PathsIn(*environment.runtime_dir + (simulated ? "/sim" : "")), simulated);
}

Limit LimitOf(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return {UINT64_MAX, UINT64_MAX};
  const auto value = [](rlim_t bytes) { return bytes == RLIM_INFINITY ? UINT64_MAX : uint64_t{bytes}; };
  return {value(limit.rlim_cur), value(limit.rlim_max)};
}

Result<Space> SpaceOf(const std::string& path) {
  struct statvfs info{};
  if (::statvfs(path.c_str(), &info) != 0)
    return Fail(errno == ENOENT ? Code::kNotFound : Code::kUnavailable, path + ": " + std::strerror(errno));
  return Space{.total_bytes = uint64_t{info.f_blocks} * info.f_frsize,
               .free_bytes = uint64_t{info.f_bavail} * info.f_frsize,
               // A file system without a fixed number of files says 0 of 0.
               .free_files = info.f_files == 0 ? UINT64_MAX : uint64_t{info.f_favail},
               .read_only = (info.f_flag & ST_RDONLY) != 0};
}

std::string CLibrary() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&::gnu_get_libc_version), &info) != 0 && info.dli_fname)
    return info.dli_fname;
  return "";
}

// A value that is made when it is first asked for.
template <typename T, typename Make>
std::function<const T&()> Once(const Make& make) {
  auto value = std::make_shared<std::optional<T>>();
  return [value, make]() -> const T& {
    if (!*value) value->emplace(make());
    return **value;
  };
}

DaemonView LookAtDaemon(const RuntimePaths& place, std::chrono::milliseconds patience) {
  DaemonView view{
      .paths = place, .state = DaemonView::State::kAbsent, .error = {}, .version = {}, .status = {}};
  const auto fd = ipc::ConnectUnix(place.api_socket, SOCK_STREAM);
  if (!fd) {
    view.error = fd.error();
    if (fd.error().code == Code::kDenied) view.state = DaemonView::State::kNotAllowed;
    if (fd.error().code == Code::kUnavailable) view.state = DaemonView::State::kStale;
    return view;
  }
  const ApiClient client = ApiClient::At(place.api_socket);
  auto version = client.Get("/v1/version", patience);
  auto status = version ? client.Get("/v1/status", patience) : version;
  view.state = status ? DaemonView::State::kAnswers : DaemonView::State::kSilent;
  if (status) {
    view.version = std::move(*version);
    view.status = std::move(*status);
  } else {
    view.error = status.error();
  }
  return view;
}

}  // namespace

std::vector<DaemonView> LookAtDaemons(const std::vector<RuntimePaths>& places,
                                      std::chrono::milliseconds patience) {
  std::vector<DaemonView> views;
  for (const RuntimePaths& place : places) views.push_back(LookAtDaemon(place, patience));
  return views;
}

std::optional<std::string> Environment::Variable(const std::string& name) const {
  const auto found = variables.find(name);
  if (found == variables.end()) return std::nullopt;
  return found->second;
}

bool Environment::MayUse(const std::string& path) const {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return false;
  if (uid == 0) return true;
  const mode_t wanted = S_ISDIR(info.st_mode) ? 07 : 06;
  mode_t given = info.st_mode & 07;
  if (info.st_uid == uid) {
    given = (info.st_mode >> 6) & 07;
  } else {
    for (const gid_t group : groups) {
      if (group == info.st_gid) given = (info.st_mode >> 3) & 07;
    }
  }
  return (given & wanted) == wanted;
}

Environment RealEnvironment() {
  Environment environment;
  environment.variables = Variables();
  environment.uid = ::geteuid();
  environment.groups = Groups();
  environment.user = UserOf(environment.uid);
  environment.now = std::chrono::system_clock::now();
  environment.version = GPUMUX_VERSION;
  environment.c_library = CLibrary();
  if (const auto bin = ExecutableDir())
    environment.guard_library = fs::path(*bin).parent_path() / "lib/gpumux/libgpumux-guard.so";
  environment.runtime_dir = RuntimeDirName();
  environment.gpus = Once<GpuView>(LookAtGpus);
  environment.cuda = Once<Result<CudaView>>([gpus = environment.gpus] { return LookAtCuda(gpus()); });
  environment.daemons = Once<std::vector<DaemonView>>([environment] {
    // Where the GPUs come from decides which daemon is ours; it must not be that
    // a driver that is sick hides the daemon.
    const GpuView& gpus = environment.gpus();
    return LookAtDaemons(Places(environment, gpus.simulated()), kPatience);
  });
  environment.limit = LimitOf;
  environment.space = SpaceOf;
  return environment;
}

}  // namespace gpumux::cli::doctor
