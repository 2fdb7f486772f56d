// SPDX-License-Identifier: Apache-2.0
//
// Modules and libraries with a variable of 50 MiB.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "rows.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

namespace {

constexpr int64_t kBytes = 50 * kMiB;

std::string Text(uint64_t bytes) {
  return ".version 7.8\n.target sm_80\n.address_size 64\n.visible .global .align 16 .b8 big[" +
         std::to_string(bytes) + "];\n.visible .entry k() { ret; }\n";
}
const char* Image() {
  static const std::string text = Text(kBytes);
  return text.c_str();
}
const char* SmallImage() {
  static const std::string text = Text(1000);
  return text.c_str();
}
const char* File() {
  static const std::string path = [] {
    std::string name = "/tmp/gpumux-probe-XXXXXX";
    const int fd = mkstemp(name.data());
    const std::string text = Text(kBytes);
    if (fd < 0 || write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::exit(9);
    close(fd);
    static std::string to_remove = name;
    std::atexit([] { unlink(to_remove.c_str()); });
    return name;
  }();
  return path.c_str();
}
void UnloadOut() { MUST(named.cuModuleUnload(As<CUmodule>(out))); }
void UnloadLibraryOut() { MUST(named.cuLibraryUnload(As<CUlibrary>(out))); }

void AddModules(std::vector<Row>* rows) {
  auto add = [&](const char* hook, const char* variant, int64_t takes, CUresult (*call)(const Hooked&)) {
    rows->push_back({.hook = hook,
                     .variant = variant,
                     .takes = takes,
                     .charges = takes,
                     .call = call,
                     .undo = UnloadOut});
  };
  add("cuModuleLoad", "", kBytes, [](const Hooked& d) { return d.cuModuleLoad(Out<CUmodule>(), File()); });
  add("cuModuleLoadData", "", kBytes,
      [](const Hooked& d) { return d.cuModuleLoadData(Out<CUmodule>(), Image()); });
  add("cuModuleLoadData", "small", 2 * kMiB,
      [](const Hooked& d) { return d.cuModuleLoadData(Out<CUmodule>(), SmallImage()); });
  add("cuModuleLoadDataEx", "", kBytes,
      [](const Hooked& d) { return d.cuModuleLoadDataEx(Out<CUmodule>(), Image(), 0, nullptr, nullptr); });
  add("cuModuleLoadFatBinary", "", kBytes,
      [](const Hooked& d) { return d.cuModuleLoadFatBinary(Out<CUmodule>(), Image()); });
}

}  // namespace

void AddModuleRows(std::vector<Row>* rows) {
  auto add = [&](Row row) { rows->push_back(std::move(row)); };
  AddModules(rows);
  add({.hook = "cuModuleUnload",
       .takes = -kBytes,
       .charges = -kBytes,
       .prepare = [] { MUST(named.cuModuleLoadData(reinterpret_cast<CUmodule*>(&held), Image())); },
       .call = [](const Hooked& d) { return d.cuModuleUnload(As<CUmodule>(held)); }});
  add({.hook = "cuModuleUnload",
       .variant = "small",
       .takes = -2 * static_cast<int64_t>(kMiB),
       .charges = -2 * static_cast<int64_t>(kMiB),
       .prepare = [] { MUST(named.cuModuleLoadData(reinterpret_cast<CUmodule*>(&held), SmallImage())); },
       .call = [](const Hooked& d) { return d.cuModuleUnload(As<CUmodule>(held)); }});
  // A library's variables exist once a context uses them, when nothing can be
  // refused: charged when it is loaded.
  add({.hook = "cuLibraryLoadData",
       .takes = 0,
       .charges = kBytes,
       .call =
           [](const Hooked& d) {
             return d.cuLibraryLoadData(Out<CUlibrary>(), Image(), nullptr, nullptr, 0, nullptr, nullptr, 0);
           },
       .undo = UnloadLibraryOut});
  add({.hook = "cuLibraryLoadFromFile",
       .takes = 0,
       .charges = kBytes,
       .call =
           [](const Hooked& d) {
             return d.cuLibraryLoadFromFile(Out<CUlibrary>(), File(), nullptr, nullptr, 0, nullptr, nullptr,
                                            0);
           },
       .undo = UnloadLibraryOut});
  add({.hook = "cuLibraryUnload",
       .takes = 0,
       .charges = -kBytes,
       .prepare =
           [] {
             MUST(named.cuLibraryLoadData(reinterpret_cast<CUlibrary*>(&held), Image(), nullptr, nullptr, 0,
                                          nullptr, nullptr, 0));
           },
       .call = [](const Hooked& d) { return d.cuLibraryUnload(As<CUlibrary>(held)); }});
}

}  // namespace gpumux::probe
