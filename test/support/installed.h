// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "sandbox.h"

namespace gpumux::test {

// A build of a sandbox's own, to replace and remove parts of.
class Installed {
 public:
  explicit Installed(const Sandbox& box) : dir_(box.dir() + "/installed") {
    namespace fs = std::filesystem;
    const fs::path build = fs::path(Sandbox::Program("gpumux")).parent_path().parent_path();
    fs::create_directories(dir_);
    for (const char* part : {"bin", "lib"})
      fs::copy(build / part, dir_ + "/" + part,
               fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  }
  const std::string& dir() const { return dir_; }
  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  // As a package manager does: another file, renamed into place. What stands behind
  // the end of a program or a library is nobody's.
  void Replace(const std::string& name) const {
    std::filesystem::copy_file(Path(name), Path(name) + ".new");
    std::ofstream(Path(name) + ".new", std::ios::app) << "another release";
    std::filesystem::rename(Path(name) + ".new", Path(name));
  }
  // A process runs the file that is there now.
  bool Runs(const std::string& name) const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::error_code error;
      const auto exe = std::filesystem::read_symlink(entry.path() / "exe", error);
      if (!error && exe == Path(name)) return true;
    }
    return false;
  }

 private:
  std::string dir_;
};

}  // namespace gpumux::test
